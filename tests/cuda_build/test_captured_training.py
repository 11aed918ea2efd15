"""The functions that an update captures in graphs, on a pretended GPU: they never wait for it."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from lightconv_plugin.criterions.label_smoothed_cross_entropy import PlaLabelSmoothedCrossEntropy
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training.flat import FlatModel
from lightconv_plugin.training.shapes import Padding
from lightconv_plugin.training.updates import Updates
from tests.cuda_build.autograd import backward
from tests.cuda_build.test_captured_search import ARCHITECTURES
from tests.cuda_build.test_models import DROPOUT, PRECISIONS, build, of_one_type, precise
from tests.models import common
from tests.training.counting import Count
from tests.waits import waits

SHAPE = (4, 6, 5)  # sentences, source, target


def gradients(loss, params, **_):
    by_leaf = backward(loss)
    return tuple(by_leaf.get(param) for param in params)


OURS, THEIRS = PlaLabelSmoothedCrossEntropy, LabelSmoothedCrossEntropyCriterion
CASES = [*itertools.product(ARCHITECTURES, PRECISIONS[:3], [OURS]), (ARCHITECTURES[0], "float16", THEIRS)]


@pytest.fixture
def begun(gpu, monkeypatch):
    """Return a function that starts the updates of a model, and returns them with a batch."""
    monkeypatch.setattr("torch.autograd.grad", gradients)
    monkeypatch.setattr("torch.cuda.Event", lambda: None)
    monkeypatch.setattr("torch.get_rng_state", lambda: None)
    monkeypatch.setattr("torch.set_rng_state", lambda state: None)

    def begin(model, criterion, shape):
        updates = Updates(model, criterion, criterion.task, Padding(1, 2), [shape], capture=False)
        optimizer = SimpleNamespace(params=list(model.parameters()), optimizer=SimpleNamespace(state={}))
        settings = ending.Settings(clip=1.0, scaled=True, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
        updates.begin(FlatModel(optimizer, updates.reached), settings, dict.fromkeys(ending.CONTROL, 1.0))
        return updates, updates._blank(shape)

    return begin


@pytest.mark.parametrize(("arch", "precision", "criterion"), CASES)
def test_an_update_does_not_wait(arch, precision, criterion, gpu, begun):
    with precise(precision):
        loss = criterion(common.task(30), sentence_avg=False, label_smoothing=0.1)
        updates, sample = begun(build(arch, **DROPOUT).train(), loss, SHAPE)
        with waits("cuda") as met:
            updates._add(sample)
            updates._finish()
    assert met == []
    assert gpu.met >= {"residual_norm_backward", "adam_step", "update_decide"}


def attend(q, k, v, attn_mask=None, dropout_p=0.0):
    """Call the kernel that PyTorch chooses on a GPU."""
    mask = attn_mask.expand(*q.shape[:3], k.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, dropout_p)[0]


def test_the_operators_of_an_update(begun, monkeypatch):
    """Size: the paper's, with 4,096 tokens in float16. Most operators launch one kernel. pytest's -s lists them."""
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", attend)
    with precise("float16"):
        task = common.task(10_000)
        model = of_one_type(common.build(ARCHITECTURES[1], task, dropout=0.3, share_all_embeddings=True)).train()
        updates, sample = begun(model, OURS(task, sentence_avg=False, label_smoothing=0.1), (128, 32, 32))
        with Count() as count:
            updates._add(sample)
            updates._finish()
    launched = count.launched()
    print(f"\n{launched.total()} operators:", ", ".join(f"{name} {number}" for name, number in launched.most_common()))
    assert launched.total() <= 718
