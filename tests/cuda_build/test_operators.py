"""The public operators and the loss on a pretended GPU, where the library has kernels for some of them."""

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.criterions.label_smoothed_cross_entropy import PlaLabelSmoothedCrossEntropy
from lightconv_plugin.ops.fused import train
from tests.criterions.test_label_smoothed_cross_entropy import Model, criterions
from tests.waits import waits

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_decoding(dtype, gpu):
    x, weight, keys = torch.ones(1, 4, 8, dtype=dtype), torch.ones(2, 3), torch.ones(2, 5, 8, dtype=dtype)
    sentence = torch.zeros(4, dtype=torch.long)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    assert ops.attend(x, keys, keys, padding, sentence, 2).dtype == dtype
    assert ops.linear(x, torch.ones(6, 8, dtype=dtype)).shape == (1, 4, 6)
    assert ops.glu_mask(x).shape == (1, 4, 4)
    state: dict | None = None
    for kernels in (weight, weight.expand(1, 4, 2, 3)):
        out, state = ops.conv_step(x, kernels, state)
        assert out.shape == x.shape
        state = ops.reorder_state(state, sentence)
    assert state is not None
    assert ops.reorder_state(state, sentence.repeat(2))["ancestors"].shape == (3, 8)
    assert gpu.met == {"attend", "glu_mask", "conv_step"}
    options: dict = {"temperature": 1.0, "pad": 1, "unk": 3, "unk_penalty": 0.0, "banned": None, "only": 2}
    best = ops.beam_candidates(torch.ones(4, 9, dtype=dtype), torch.ones(4), beams=2, count=4, **options)
    assert [t.shape for t in best] == [(2, 4)] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalization", ["softmax", "none"])
def test_training(dtype, normalization, gpu):
    """Forward, with gradients wanted; autograd's backward asks for a device."""
    x, options = torch.ones(5, 2, 8, dtype=dtype, requires_grad=True), {"padding_l": 1, "normalization": normalization}
    for p in (0.0, 0.3):
        assert ops.light_conv(x, torch.ones(2, 3), dropconnect=p, **options).dtype == dtype
        assert ops.dynamic_conv(x, torch.ones(5, 2, 2, 3), dropconnect=p, **options).requires_grad
        assert ops.dropout(x, p).requires_grad
    assert ops.glu_mask(x, torch.zeros(2, 5, dtype=torch.bool)).requires_grad
    assert gpu.met == {"light_conv", "dynamic_conv", "glu_mask"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sentences_wait_for_nothing(dtype, gpu):
    x, state = torch.ones(9, 8, dtype=dtype, requires_grad=True), torch.ones(2, 3, 8, dtype=dtype)
    places: dict = {"cu_seqlens": torch.tensor([0, 2, 2, 9]), "initial_state": state, "return_state": True}
    with waits("cuda") as met:
        for operator, weight in ((ops.light_conv, torch.ones(2, 3)), (ops.dynamic_conv, torch.ones(9, 2, 3))):
            out, last = operator(x, weight, padding_l=2, **places)
            assert (out.shape, last.shape, out.dtype, out.device.type) == (x.shape, state.shape, dtype, "cuda")
    assert met == []
    assert gpu.met == {"light_conv", "dynamic_conv"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loss(dtype, gpu):
    """In two kernels, the gradient too, without waiting for a number of the device's."""
    ours = criterions()[1]
    assert isinstance(ours, PlaLabelSmoothedCrossEntropy)
    logits = torch.ones(3, 5, 9, dtype=dtype, requires_grad=True)
    with waits("cuda") as met:
        loss, _ = ours.compute_loss(Model(), (logits, None), {"target": torch.full((3, 5), 4)})
    assert loss.shape == ()
    assert loss.requires_grad
    # autograd itself asks for a device
    with waits("cuda") as met_backward, torch.no_grad():
        one = torch.ones((), dtype=loss.dtype)
        gradient = train._SmoothedNll.backward(loss.grad_fn, one, one)[0]
    assert met == met_backward == []
    assert (gradient.shape, gradient.dtype) == ((15, 9), dtype)
    assert gpu.met == {"smoothed_nll", "smoothed_nll_backward"}
