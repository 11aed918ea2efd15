"""Dropout acts on the right tensors, and ``--retain-dropout`` switches it on as it does fairseq's."""

from argparse import Namespace

import pytest
import torch
from fairseq.modules import FairseqDropout

from lightconv_plugin.models.layers import FeedForward, Residual
from lightconv_plugin.modules import AverageAttention, Dropout
from tests.tolerances import assert_close


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
def test_dropout_is_retained_in_generation_where_fairseqs_is(options, training, probability):
    owner = AverageAttention(4, 8, causal=True)
    ours, theirs = Dropout(probability, owner), FairseqDropout(probability, "AverageAttention")
    for module in (ours, theirs):
        module.train(training)
        module.make_generation_fast_(name="decoder.dropout", **options)
    drops = theirs.p > 0 and (theirs.training or theirs.apply_during_inference)
    assert ours.probability == (probability if drops else 0.0)


def test_dropout_acts_on_branches_and_hidden_activations():
    """With p = 1 a residual block returns its input, and a feed-forward network its last bias."""
    x, network = torch.randn(3, 2, 8), FeedForward(8, 16, dropout=1.0)
    average = AverageAttention(8, 16, causal=True, dropout=1.0)
    for parameter, value in ((network.fc2.bias, 1.0), (average.fc2.bias, 1.0), (average.gate.weight, 0.0)):
        torch.nn.init.constant_(parameter, value)
    assert torch.equal(Residual(Namespace(embed_dim=8, normalize_before=True), 1.0)(x, x.exp()), x)
    assert torch.equal(network(x), torch.ones_like(x))
    assert_close(average(x), (x + 1) / 2)
