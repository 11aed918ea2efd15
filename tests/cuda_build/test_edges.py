"""The convolutions on a pretended GPU at the edges of what the library takes."""

import pytest
import torch

from lightconv_plugin import ops
from lightconv_plugin.ops import backend
from tests.cuda_build.autograd import backward

FORWARD = {"light_conv", "dynamic_conv"}
BOTH = {*FORWARD, "conv_backward"}


def weights(time, batch, heads, width, **options):
    yield "light_conv", torch.ones(heads, width, **options)
    yield "dynamic_conv", torch.ones(time, batch, heads, width, **options)


@pytest.mark.parametrize(
    ("time", "batch", "heads", "width"),
    [
        *((5, 2, 2, width) for width in (1, 2, 64, 65, 4096)),
        *((5, 2, heads, 3) for heads in (1, 8, 12, 24)),
        *((time, 2, 2, 3) for time in (0, 1, 33)),
        (5, 0, 2, 3),
    ],
)
def test_sizes(time, batch, heads, width, gpu):
    for operator, weight in weights(time, batch, heads, width, requires_grad=True):
        x = torch.ones(time, batch, 24, requires_grad=True)
        out = getattr(ops, operator)(x, weight, padding_l=width - 1)
        assert out.shape == x.shape
        found = backward(out)
        assert [found[t].shape for t in (x, weight)] == [x.shape, weight.shape]
    assert gpu.met == BOTH


def test_strides(gpu):
    for operator, weight in weights(5, 2, 2, 6):
        x = torch.ones(2, 5, 48).transpose(0, 1)[..., ::2]
        assert getattr(ops, operator)(x, weight[..., ::2], padding_l=1).is_contiguous()
    assert gpu.met == FORWARD


def test_types(gpu):
    for operator, weight in weights(5, 2, 2, 3):
        call = getattr(ops, operator)
        for dtype in backend.TYPES:
            assert call(torch.ones(5, 2, 24, dtype=dtype), weight, padding_l=1).dtype == dtype
        for dtype in (torch.long, torch.float8_e5m2):
            with pytest.raises(ValueError, match=f"floating-point of at least 16 bits, .*; got x .*{dtype}"):
                call(torch.ones(5, 2, 24).to(dtype), weight, padding_l=1)
        with pytest.raises(ValueError, match=r"one device; got x .* on cuda:0, and weight .* on cpu"):
            call(torch.ones(5, 2, 24), torch.ones(weight.shape, device="cpu"), padding_l=1, backend="native")


@pytest.mark.parametrize(("width", "taken"), [(1, True), (3072, True), (3073, False)])
@torch.no_grad()
def test_steps(width, taken, gpu):
    """Beyond the widest kernel whose weights fit a GPU's shared memory the definition decodes."""
    x = torch.ones(1, 2, 24)
    for weight in (torch.ones(2, width), torch.ones(1, 2, 2, width)):
        state = None
        for _ in range(2):
            out, state = ops.conv_step(x, weight, state)
            assert out.shape == x.shape
    assert gpu.met == ({"conv_step"} if taken else set())
    if not taken:
        with pytest.raises(ValueError, match="conv_step takes rows of at most 3072 weights; got 3073"):
            ops.conv_step(x, torch.ones(2, width), None, backend="native")


def test_steps_with_gradients(gpu):
    x = torch.ones(1, 2, 24, requires_grad=True)
    assert ops.conv_step(x, torch.ones(2, 3), None)[0].requires_grad
    assert gpu.met == set()
    with pytest.raises(ValueError, match="it records no gradients"):
        ops.conv_step(x, torch.ones(2, 3), None, backend="native")


@pytest.mark.parametrize("shape", [(1, 0, 8), (0, 3, 8), (0, 8), (8,)])
@torch.no_grad()
def test_products_of_no_rows(shape, gpu):
    """As where no sentence is searched any more."""
    weight, bias = torch.ones(6, 8), torch.ones(6)
    for relu in (False, True):
        assert ops.linear(torch.ones(shape), weight, bias, relu=relu).shape == (*shape[:-1], 6)
