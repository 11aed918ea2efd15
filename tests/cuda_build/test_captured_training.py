"""The functions that graphs of an update hold, on a pretended GPU: nothing in them waits for it."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from lightconv_plugin.criterions.label_smoothed_cross_entropy import PlaLabelSmoothedCrossEntropy
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.updates import Padding, Updates
from tests.cuda_build.autograd import backward
from tests.cuda_build.test_captured_search import ARCHITECTURES
from tests.cuda_build.test_models import DROPOUT, PRECISIONS, build, precise
from tests.models import common
from tests.waits import waits

SHAPE = (4, 6, 5)  # sentences, source, target


def gradients(loss, params, **_):
    found = backward(loss)
    return tuple(found.get(param) for param in params)


OURS, THEIRS = PlaLabelSmoothedCrossEntropy, LabelSmoothedCrossEntropyCriterion
CASES = [*itertools.product(ARCHITECTURES, PRECISIONS[:3], [OURS]), (ARCHITECTURES[0], "float16", THEIRS)]


@pytest.mark.parametrize(("arch", "precision", "criterion"), CASES)
def test_an_update_does_not_wait(arch, precision, criterion, gpu, monkeypatch):
    monkeypatch.setattr("torch.autograd.grad", gradients)
    monkeypatch.setattr("torch.cuda.Event", lambda: None)
    monkeypatch.setattr("torch.get_rng_state", lambda: None)
    monkeypatch.setattr("torch.set_rng_state", lambda state: None)
    with precise(precision):
        task = common.task(30)
        model = build(arch, **DROPOUT).train()
        loss = criterion(task, sentence_avg=False, label_smoothing=0.1)
        updates = Updates(model, loss, Padding(1, 2), torch.device("cuda"), capture=False)
        optimizer = SimpleNamespace(params=list(model.parameters()), optimizer=SimpleNamespace(state={}))
        updates.prepare([SHAPE])
        sample = updates._blank(SHAPE)
        settings = ending.Settings(clip=1.0, scaled=True, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
        updates.begin(FlatModel(optimizer), settings, dict.fromkeys(ending.CONTROL, 1.0))
        with waits("cuda") as met:
            updates._add(sample)
            updates._finish()
    assert met == []
