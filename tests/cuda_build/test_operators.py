"""The public operators on a pretended GPU: those with kernels, and the limits of the sizes that these support."""

import pytest
import torch

from lightconv_plugin import ops
from tests.cuda_build.autograd import backward
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
    options: dict = {"temperature": 1.0, "pad": 1, "eos": 2, "unk": 3, "unk_penalty": 0.0}
    for count in (33, 4):  # for more than 32, the reference implementation runs
        assert "step_candidates" not in gpu.met
        logits, limits = torch.ones(4, 99, dtype=dtype), torch.tensor([1, 0, 9])
        best = ops.step_candidates(logits, torch.ones(4), limits, beams=2, count=count, **options)
        assert [t.shape for t in best] == [(2, count)] * 3
    assert "step_candidates" in gpu.met


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
@pytest.mark.parametrize(("normalization", "dropconnect"), [("softmax", 0.3), ("none", 0.0)])
@pytest.mark.parametrize(
    ("time", "batch", "heads", "width"),
    [
        *((5, 2, 2, width) for width in (1, 2, 64, 65, 4096)),
        *((5, 2, heads, 3) for heads in (1, 8, 12, 24)),
        *((time, 2, 2, 3) for time in (0, 1, 33)),
        (5, 0, 2, 3),
    ],
)
def test_convolutions(time, batch, heads, width, normalization, dropconnect, dtype, gpu):
    """Inputs and weights are not contiguous."""
    for operator, shape in ((ops.light_conv, ()), (ops.dynamic_conv, (time, batch))):
        weight = torch.ones(*shape, heads, 2 * width, dtype=dtype)[..., ::2].requires_grad_()
        x = torch.ones(batch, time, 48, dtype=dtype).transpose(0, 1)[..., ::2].requires_grad_()
        out = operator(x, weight, padding_l=width - 1, normalization=normalization, dropconnect=dropconnect)
        assert (out.shape, out.dtype) == (x.shape, dtype)
        gradients = backward(out)
        assert all(gradients[t].shape == t.shape and gradients[t].dtype == dtype for t in (x, weight))
    assert gpu.met == {"light_conv", "dynamic_conv", "conv_backward"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_other_operators(dtype, gpu):
    x = torch.ones(5, 2, 8, dtype=dtype, requires_grad=True)
    for mask in (None, torch.zeros(2, 5, dtype=torch.bool)):
        assert backward(ops.glu_mask(x, mask))[x].shape == x.shape
    assert backward(ops.dropout(x, 0.1))[x].dtype == dtype
    logits = torch.ones(10, 9, dtype=dtype, requires_grad=True)
    loss, _ = ops.smoothed_nll(logits, torch.full((10,), 4), 0.1, 1)
    assert backward(loss)[logits].dtype == dtype
    weight, bias = (torch.ones(8, dtype=dtype, requires_grad=True) for _ in range(2))
    for p in (0.0, 0.3):
        gradients = backward(ops.residual_norm(x, x.detach().requires_grad_(), weight, bias, p, 1e-5))
        assert sorted((g.shape, g.dtype) for g in gradients.values()) == [((5, 2, 8), dtype)] * 2 + [((8,), dtype)] * 2
    forward = {"glu_mask", "residual_norm", "smoothed_nll"}
    assert gpu.met == forward | {f"{name}_backward" for name in forward}


@pytest.mark.parametrize(("width", "is_native"), [(1, True), (3072, True), (3073, False)])
@torch.no_grad()
def test_steps(width, is_native, gpu):
    """The reference implementation decodes kernels too wide for a GPU's shared memory."""
    x = torch.ones(1, 2, 24)
    for weight in (torch.ones(2, width), torch.ones(1, 2, 2, width)):
        state = None
        for _ in range(2):
            out, state = ops.conv_step(x, weight, state)
            assert out.shape == x.shape
    assert gpu.met == ({"conv_step"} if is_native else set())
    if not is_native:
        with pytest.raises(ValueError, match="conv_step takes rows of at most 3072 weights; got 3073"):
            ops.conv_step(x, torch.ones(2, width), None, backend="native")


@pytest.mark.parametrize("shape", [(1, 0, 8), (0, 3, 8), (0, 8), (8,)])
@torch.no_grad()
def test_products_of_no_rows(shape, gpu):
    """A search has no rows when all sentences are finished."""
    weight, bias = torch.ones(6, 8), torch.ones(6)
    for relu in (False, True):
        assert ops.linear(torch.ones(shape), weight, bias, relu=relu).shape == (*shape[:-1], 6)
