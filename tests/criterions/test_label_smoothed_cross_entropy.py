"""The criterion against fairseq's own."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary

from lightconv_plugin.criterions.label_smoothed_cross_entropy import PlaLabelSmoothedCrossEntropy
from lightconv_plugin.ops.auxiliary import autograd
from tests.tolerances import assert_close

PAD = Dictionary().pad()


class Model:
    """As much of a model as a criterion asks for."""

    decoder = SimpleNamespace(adaptive_softmax=None)

    def get_targets(self, sample, net_output):
        return sample["target"]

    def get_normalized_probs(self, net_output, log_probs):
        return torch.log_softmax(net_output[0].float(), dim=-1)


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


@pytest.mark.parametrize("adaptive", [True, False])
def test_what_it_does_not_do_is_fairseqs_to_do(adaptive, monkeypatch):
    monkeypatch.setattr(autograd, "smoothed_nll", None)
    model = Model()
    if adaptive:
        model.decoder = SimpleNamespace(adaptive_softmax=object())
    logits, sample = batch()
    theirs, ours = (c.compute_loss(model, (logits, None), sample, reduce=adaptive) for c in criterions())
    for expected, got in zip(theirs, ours, strict=True):
        assert torch.equal(expected, got)
