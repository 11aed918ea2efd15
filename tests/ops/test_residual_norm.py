"""Residual, dropout and layer norm in one operator: the CUDA sources on a CPU against PyTorch in float64."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lightconv_plugin import ops
from lightconv_plugin.models.layers import Residual
from lightconv_plugin.ops.fused import training
from tests.models import test_architectures as small
from tests.ops.cuda_on_cpu import Machine
from tests.ops.philox import dropout_factors
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
EPS = 1e-5
# each is a kernel of its own; 2 to 8 warps a row, vectors of each width, and what fills none
CHANNELS = [(F16, 512), (BF16, 1040), (F32, 4096), (F16, 1), (BF16, 6), (F32, 515), (F64, 1028), (F32, 36)]


@pytest.fixture(scope="module")
def gpu() -> Machine:
    return Machine()


def rows(dtype: torch.dtype, *shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def definition(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(z, z.shape[-1:], weight, bias, EPS)


@pytest.mark.parametrize(("dtype", "channels"), CHANNELS)
@settings(max_examples=12)
@given(count=st.integers(0, 11), p=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 2**62), of_z=st.booleans())
def test_rows_and_gradients(gpu, dtype, channels, count, p, seed, of_z):
    """Of any number of rows, whose mean is far from zero."""
    x, y, grad, grad_z = (rows(dtype, count, channels, seed=seed + i) for i in range(4))
    x = x + 10
    weight, bias = (rows(dtype, channels, seed=seed + i) for i in range(4, 6))
    exact = [t.double().requires_grad_() for t in (x, y, weight, bias)]
    kept = dropout_factors(x.numel(), p, seed).view(x.shape) if p > 0 else torch.ones(x.shape, dtype=F64)
    z = exact[0] + exact[1] * kept
    number = torch.tensor([seed]) if p > 0 else None
    out, sums, stats = gpu.residual_norm(x, y, weight, bias, p, number, EPS)
    assert_close(sums, z.detach(), dtype)
    # the norm is that of the rows as they are stored
    z.data.copy_(sums)
    want = definition(z, *exact[2:])
    assert_close(out, want.detach(), dtype)
    wanted = torch.autograd.grad([want, z], exact, [grad.double(), grad_z.double() * of_z])
    of_x, of_y, of_affine = gpu.residual_norm_backward(grad, grad_z if of_z else None, sums, weight, stats, p, number)
    got = (of_x, of_y if p > 0 else of_x, *of_affine)
    for a, b in zip(got, wanted, strict=True):
        scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        assert_close(a / scale, b / scale, dtype)


def test_many_rows_are_the_same_bits_every_time(gpu):
    """More of them than the backward pass has blocks for at once."""
    x, grad = rows(F32, 2400, 6, seed=0), rows(F32, 2400, 6, seed=1)
    weight, bias, seed = torch.ones(6), torch.zeros(6), torch.tensor([5])
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    results = []
    for _ in range(2):
        _, z, stats = gpu.residual_norm(x, x, weight, bias, 0.0, None, EPS)
        results.append(gpu.residual_norm_backward(grad, None, z, weight, stats, 0.0, seed))
    want = torch.autograd.grad(definition(2 * exact[0], *exact[1:]), exact, grad.double())
    assert_close(results[0][0] * 2, want[0])
    for got, sums in zip(results[0][2], want[1:], strict=True):
        assert_close(got / 100, sums / 100)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_more_channels_than_it_takes_are_refused(gpu):
    x, weight = torch.zeros(1, 4097), torch.zeros(4097)
    with pytest.raises(RuntimeError, match="rows of at most 4096 numbers; got 4097"):
        gpu.residual_norm(x, x, weight, weight, 0.0, None, EPS)


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = (rows(dtype, 3, 2, 6, seed=i).requires_grad_() for i in range(2))
    weight, bias = (rows(dtype, 6, seed=i).requires_grad_() for i in range(2, 4))
    return x, y, weight, bias


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_derivatives(p, cuda_kernels):
    """Of both results, of first and second order, with one mask."""
    seed = torch.tensor([77]) if p > 0 else None

    def both(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return training.native_residual_norm(x, y, weight, bias, p, seed, EPS)

    given = operands(F64)
    assert "ResidualNorm" in str(both(*given)[0].grad_fn)
    for which in (slice(2), slice(1), slice(1, 2)):

        def call(*given: Tensor, which: slice = which) -> tuple[Tensor, ...]:
            return both(*given)[which]

        assert gradcheck(call, given)
        assert gradgradcheck(call, given, fast_mode=True)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_what_the_library_takes_is_the_definition(p, cuda_kernels, monkeypatch):
    """By a seed of torch's generator. PyTorch computes mixed types, under autocast, torch.func and torch.compile."""
    x, y, weight, bias = operands(F32)
    torch.manual_seed(3)
    got = ops.residual_norm(x, y, weight, bias, p, EPS)
    torch.manual_seed(3)
    kept = dropout_factors(36, p, int(torch.randint(2**62, (1,)))).view(3, 2, 6) if p > 0 else 1
    assert_close(got, definition(x.double() + y.double() * kept, weight.double(), bias.double()))
    monkeypatch.setattr(training, "native_residual_norm", None)

    def fallback(x: Tensor, y: Tensor) -> Tensor:
        return ops.residual_norm(x, y, weight, bias, p, EPS)

    assert fallback(x, y.bfloat16()).dtype == F32
    with torch.autocast("cpu"):
        fallback(x, y)
    torch.func.vjp(fallback, x, y)
    compiled = torch.compile(lambda x: ops.residual_norm(x, y, weight, bias, 0.0, EPS), backend="eager", fullgraph=True)
    assert_close(compiled(x), definition(x + y, weight, bias))


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("normalize_before", [False, True])
def test_in_a_block(normalize_before, hooked, cuda_kernels, monkeypatch):
    """Its norm after the sum is the operator's, unless somebody watches the norm."""
    run = mock.Mock(wraps=ops.residual_norm)
    monkeypatch.setattr(ops, "residual_norm", run)
    block, x = Residual(6, dropout=0.0, normalize_before=normalize_before), rows(F32, 3, 2, 6, seed=0)
    if hooked:
        block.layer_norm.register_forward_hook(lambda *_: None)
    out = block(x, lambda y: 2 * y)
    want = x + 2 * block.layer_norm(x) if normalize_before else F.layer_norm(3 * x, (6,))
    assert_close(out.detach(), want.detach())
    assert run.called == (not normalize_before and not hooked)


def test_a_whole_model(cuda_kernels, monkeypatch):
    """Gradients of all parameters, by these kernels and those of linear maps' biases, as by the definition."""
    arch = "pla_dynamicconv_iwslt_de_en"
    task = small.task(arch)
    model, batch = small.build(arch, task).eval(), small.toy_batch(arch, task)
    parameters = [p for p in model.parameters() if p.requires_grad]
    run = mock.Mock(wraps=training.native_residual_norm)
    monkeypatch.setattr(training, "native_residual_norm", run)
    results = []
    for backend in ("auto", "reference"):
        monkeypatch.setenv("LIGHTCONV_BACKEND", backend)
        loss, size, _ = small.criterion(model, task)(model, batch)
        results.append(torch.autograd.grad(loss / size, parameters))
    blocks = (*model.encoder.layers, *model.decoder.layers)
    assert run.call_count == sum(isinstance(m, Residual) for block in blocks for m in block.modules())
    for got, want in zip(*results, strict=True):
        assert_close(got, want)
