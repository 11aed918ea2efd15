"""``--retain-dropout`` switches our dropout on as it does fairseq's."""

import pytest
from fairseq.modules import FairseqDropout

from lightconv_plugin.modules import AverageAttention, Dropout


@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retain_dropout": True},
        {"retain_dropout": True, "retain_dropout_modules": ["AverageAttention"]},
        {"retain_dropout": True, "retain_dropout_modules": ["Residual"]},
        {"retain_dropout_modules": ["AverageAttention"], "need_attn": False},
    ],
)
def test_retained_where_fairseqs_is(options, training, probability):
    owner = AverageAttention(4, 8, causal=True)
    ours, theirs = Dropout(probability, owner), FairseqDropout(probability, "AverageAttention")
    for module in (ours, theirs):
        module.train(training)
        module.make_generation_fast_(name="decoder.dropout", **options)
    drops = theirs.p > 0 and (theirs.training or theirs.apply_during_inference)
    assert ours.probability == (probability if drops else 0.0)
