"""Bias gradients: the CUDA sources on a CPU against PyTorch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from lightconv_plugin import ops
from lightconv_plugin.ops.fused import linear
from tests.ops.cuda_on_cpu import Machine
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(scope="module")
def gpu() -> Machine:
    return Machine()


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64])
@settings(max_examples=25)
@given(count=st.integers(0, 150), channels=st.sampled_from([1, 2, 7, 36, 256, 260, 513, 1024]), mean=st.integers(0, 1))
def test_sums(gpu, dtype, count, channels, mean):
    x = (torch.randn(count, channels, dtype=F64) + mean).to(dtype)
    got, want = gpu.column_sums(x), x.double().sum(dim=0)
    scale = max(1.0, want.abs().max().item())
    assert_close(got / scale, want / scale, dtype)


@pytest.mark.parametrize("channels", [1, 12])
def test_many_rows(gpu, channels):
    x = torch.randn(17_000, channels)
    assert_close(gpu.column_sums(x) / 100, x.double().sum(dim=0) / 100, F32)


def test_an_address_that_is_not_aligned_and_the_same_bits_every_time(gpu):
    x = torch.randn(2000 * 64 + 1).to(F16)[1:].view(2000, 64)
    first = gpu.column_sums(x)
    assert_close(first / 100, x.double().sum(dim=0) / 100, F16)
    assert torch.equal(first, gpu.column_sums(x))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 2, 4)])
def test_linear(shape, cuda_kernels):
    """Gradients of both orders, of whatever is asked for."""
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    weight, bias = torch.randn(5, 4, dtype=F64, requires_grad=True), torch.randn(5, dtype=F64, requires_grad=True)
    assert "_Linear" in str(ops.linear(x, weight, bias).grad_fn)
    assert gradcheck(ops.linear, (x, weight, bias))
    assert gradgradcheck(ops.linear, (x, weight, bias), fast_mode=True)
    assert gradcheck(lambda bias: ops.linear(x.detach(), weight.detach(), bias), (bias,))


def test_what_the_library_does_not_take(cuda_kernels, monkeypatch):
    """No gradient of a bias, mixed types, autocast, transforms of torch.func, torch.compile."""
    monkeypatch.setattr(linear, "_Linear", None)
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True)
    want = torch.nn.functional.linear(x, weight, bias)
    with pytest.raises(AttributeError):
        ops.linear(x, weight, bias)
    assert torch.equal(ops.linear(x, weight, bias.detach()), want)
    with torch.no_grad():
        assert_close(ops.linear(x, weight, bias), want)
    with torch.autocast("cpu"):
        assert ops.linear(x, weight, bias).dtype == BF16
    assert torch.equal(torch.func.vjp(lambda x: ops.linear(x, weight, bias), x)[0], want)
    assert torch.equal(torch.compile(ops.linear, backend="eager", fullgraph=True)(x, weight, bias), want)
