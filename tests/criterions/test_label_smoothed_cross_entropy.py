"""The criterion, compared with fairseq's own."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.distributed import ModuleProxyWrapper
from fairseq.models import BaseFairseqModel, FairseqDecoder
from torch import nn

from lightconv_plugin import ops
from lightconv_plugin.criterions.label_smoothed_cross_entropy import PlaLabelSmoothedCrossEntropy
from tests.tolerances import assert_close
from tests.training.runs import batches, begin

PAD = Dictionary().pad()


class Model(BaseFairseqModel):
    """The part of a model that a criterion uses."""

    def __init__(self, decoder=FairseqDecoder):
        super().__init__()
        self.decoder = decoder(Dictionary())


def halved(kind):
    """Return a subclass of a model or decoder that halves the logits in get_normalized_probs."""

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return kind.get_normalized_probs(self, (net_output[0] / 2,), log_probs)

    return type("Halved", (kind,), {"get_normalized_probs": get_normalized_probs})


def adaptive():
    model = Model()
    model.decoder.adaptive_softmax = SimpleNamespace(get_log_prob=lambda x, target: x.log_softmax(-1))
    return model


def several_processes(model):
    """Wrap a model as fairseq does: a data-parallel module, in a proxy that passes on the model's attributes."""
    return ModuleProxyWrapper(nn.DataParallel(model))


def criterions(**options):
    task = SimpleNamespace(target_dictionary=Dictionary())
    return [
        kind(task, sentence_avg=False, label_smoothing=0.1, **options)
        for kind in (LabelSmoothedCrossEntropyCriterion, PlaLabelSmoothedCrossEntropy)
    ]


def batch(types=37, dtype=torch.float32):
    target = torch.randint(PAD + 1, types, (3, 5))
    target[1, 3:] = PAD
    return torch.randn(3, 5, types, dtype=dtype, requires_grad=True), {"target": target}


@pytest.mark.parametrize("options", [{}, {"ignore_prefix_size": 2}])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_loss_and_gradient_are_fairseqs(options, backend, monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
    logits, sample = batch()
    results = []
    for criterion in criterions(**options):
        loss, nll = criterion.compute_loss(Model(), (logits, None), sample)
        assert not nll.requires_grad or criterion.__class__ is LabelSmoothedCrossEntropyCriterion
        results.append((loss.detach(), nll.detach(), torch.autograd.grad(loss / 3, logits)[0]))
    for theirs, ours in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        assert_close(ours, theirs)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    ("make", "reduce", "plain"),
    [
        (Model, True, True),
        (Model, False, False),
        (halved(Model), True, False),
        (lambda: Model(halved(FairseqDecoder)), True, False),
        (BaseFairseqModel, True, False),  # its output is a tensor of logits
        (adaptive, True, False),
    ],
)
def test_a_model_s_own_probabilities_are_used(make, reduce, plain, wrapped, monkeypatch):
    """fairseq's loss runs in the cases that the faster one does not support."""
    logits, sample = batch()
    output = logits if make is BaseFairseqModel else (logits, None)
    model = several_processes(make()) if wrapped else make()
    faster = mock.Mock(side_effect=ops.smoothed_nll)
    monkeypatch.setattr(ops, "smoothed_nll", faster)
    theirs, ours = (c.compute_loss(model, output, sample, reduce=reduce) for c in criterions())
    for expected, got in zip(theirs, ours, strict=True):
        assert_close(got, expected)
    assert faster.called == plain


@pytest.mark.parametrize("arch", ["pla_dynamicconv_iwslt_de_en", "transformer", "lightconv"])
def test_attention_weights_that_nothing_reads_are_not_computed(arch):
    """The loss is fairseq's; a model without the argument for this is called as fairseq calls it."""
    trainer = begin(False, torch.device("cpu"), arch=arch)
    model, (sample,) = trainer.get_model().train(), batches(1)
    outputs = []
    model.decoder.register_forward_hook(lambda *hooked: outputs.append(hooked[2]))
    ours = trainer.get_criterion()
    theirs = LabelSmoothedCrossEntropyCriterion(ours.task, ours.sentence_avg, ours.eps)
    losses = [criterion(model, sample)[0].detach() for criterion in (ours, theirs)]
    assert_close(losses[0] / sample["ntokens"], losses[1] / sample["ntokens"])
    attention = [output[1]["attn"] for output in outputs]
    assert attention[0] == [None]
    assert (attention[1] == [None]) == (arch == "lightconv")  # fairseq's lightconv computes none in training
