"""The fused operators of training against references in float64: on CPUs, and on an emulated GPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from lightconv_plugin.ops.fused import train
from tests.ops.conftest import each_run
from tests.ops.philox import cpu_dropout_factors, dropout_factors
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
SEED = (12345 << 32) + 678
EPS = 1e-5


def draw(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: Tensor, want: Tensor, dtype: torch.dtype | None = None) -> None:
    """Like ``assert_close``, for sums, whose error is relative to the largest of them."""
    scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    assert_close(got / scale, want / scale, dtype)


# ---- The gate ----


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("dtype", "channels"), [(BF16, 64), (F16, 6), (F32, 5), (F64, 4)])
def test_glu_and_mask(gpu, dtype, channels, masked):
    x, grad = draw(dtype, 7, 3, 2 * channels), draw(dtype, 7, 3, channels, seed=1)
    mask = torch.rand(3, 7, generator=torch.Generator().manual_seed(2)) < 0.3 if masked else None
    keep = torch.ones(7, 3, dtype=torch.bool) if mask is None else ~mask.t()
    x[~keep] = torch.nan
    exact = x.double().requires_grad_()
    want = reference.glu_mask(exact, mask)
    assert_close(gpu.glu_mask(x, mask), want.detach())
    got = gpu.glu_mask_backward(grad, x, mask)
    assert_close(got[keep], torch.autograd.grad(want, exact, grad.double())[0][keep])
    assert (got[~keep] == 0).all()


# ---- Dropout ----


@pytest.fixture
def native(monkeypatch):
    monkeypatch.setenv("LIGHTCONV_BACKEND", "native")


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_dropout_and_its_gradient_are_those_under_the_mask(cpu, dtype):
    """NaN and infinity stay where they are kept. In float32, 1 - 1e-9 is 1: everything is dropped."""
    for count in (1, 63, 64, 65, 1000):
        for p in (0.0, 0.1, 0.75):
            x, grad, factors = draw(dtype, count), draw(dtype, count, seed=1), cpu_dropout_factors(count, p, SEED)
            x.requires_grad_()
            out = train.native_dropout(x, p, torch.tensor([SEED]))
            assert_close(out.detach(), x.detach().double() * factors)
            assert_close(torch.autograd.grad(out, x, grad)[0], grad.double() * factors)
        assert not cpu.dropout(x.detach(), 1 - 1e-9, torch.tensor([SEED])).any()
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype).repeat(100)
    want = torch.where(cpu_dropout_factors(300, 0.5, SEED) > 0, bad, torch.zeros_like(bad))
    torch.testing.assert_close(cpu.dropout(bad, 0.5, torch.tensor([SEED])), want, equal_nan=True)


def masked_by(seed: int, x: Tensor, p: float = 0.3) -> Tensor:
    torch.manual_seed(seed)
    return ops.dropout(x, p)


def test_dropout_follows_torchs_generator_in_any_layout_on_any_threads(native, set_threads):
    x = torch.ones(100_001)
    first = masked_by(1, x)
    second = ops.dropout(x, 0.3)
    assert not torch.equal(first, second)
    for threads in (1, 2, 7):
        set_threads(threads)
        assert torch.equal(first, masked_by(1, x))
    assert abs((first == 0).double().mean().item() - 0.3) < 0.01
    x = torch.randn(6, 5, 7).transpose(0, 2)
    assert torch.equal(masked_by(1, x), masked_by(1, x.contiguous()))
    wide = torch.ones(1, 1).expand(40, 50)
    assert len(ops.dropout(wide, 0.5).unique()) == 2  # a mask for each element, not for each address
    with torch.device("meta"):  # a default device that the caller has set
        assert torch.equal(masked_by(1, x[0]), masked_by(1, x[0]))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers_draw_the_same_masks(reentrant):
    """Two batches go forward, each through a layer that is called twice, before the first gradient is computed."""
    weight = torch.randn(2, 3)

    def layer(x: Tensor) -> Tensor:
        return ops.dropout(ops.light_conv(x, weight, padding_l=1, dropconnect=0.3), 0.3)

    def gradients(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        batches = [torch.ones(6, 3, 4, requires_grad=True) for _ in range(2)]
        losses = [call(call(x)).square().sum() for x in batches]
        for loss in losses:
            loss.backward()
        return tuple(x.grad for x in batches if x.grad is not None)

    plain = gradients(layer)
    again = gradients(lambda x: checkpoint(layer, x, use_reentrant=reentrant))
    assert not torch.equal(*plain)
    for got, want in zip(again, plain, strict=True):
        assert_close(got, want)


def test_pytorch_drops_all_or_nothing_and_on_other_devices(monkeypatch):
    monkeypatch.setattr(train, "native_dropout", None)
    x = torch.randn(10)
    assert torch.equal(ops.dropout(x, 0.0), x)
    assert torch.equal(ops.dropout(x, 1.0), torch.zeros(10))
    assert ops.dropout(x.to("meta"), 0.5).shape == (10,)
    monkeypatch.setenv("LIGHTCONV_BACKEND", "reference")
    out = masked_by(1, x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(out, F.dropout(x, 0.5))
    with pytest.raises(ValueError, match=r"p is 1\.5; expected 0 <= p <= 1"):
        ops.dropout(x, 1.5)


# ---- Attention ----


def test_attention_is_pytorchs():
    q = torch.randn(3, 2, 5, 7, dtype=F64, requires_grad=True)
    k, v = torch.randn(2, 3, 2, 4, 7, dtype=F64)
    mask = torch.rand(3, 1, 5, 4) > 0.5
    mask[..., 0] = True
    for seen in (None, mask, torch.randn(3, 2, 5, 4, dtype=F64)):
        want = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out, weights = ops.attention(q, k, v, seen, 0.0, need_weights=True)
        plain, none = ops.attention(q, k, v, seen, 0.0)
        assert weights is not None
        assert none is None
        for got in (out, plain, weights @ v):
            assert_close(got.detach(), want.detach())
        grad = torch.randn_like(out)
        assert_close(torch.autograd.grad(out, q, grad)[0], torch.autograd.grad(want, q, grad)[0])


def test_attention_returns_the_weights_before_dropout(native):
    q, k = torch.randn(2, 1, 2, 50, 4)
    v = torch.eye(50).expand(1, 2, 50, 50)
    out, weights = ops.attention(q, k, v, None, 0.25, need_weights=True)
    assert weights is not None
    dropped = out == 0
    assert 0.2 < dropped.double().mean() < 0.3
    assert_close(out[~dropped], weights[~dropped] / 0.75)
    assert_close(weights.sum(-1), torch.ones(1, 2, 50))


# ---- The loss ----

SHARES, GRAD = (0.8, 0.1), 0.5


def rows_of_logits(rows: int, types: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return logits (rows, types) and targets; the second target is ignored."""
    target = torch.randint(1, types, (rows,), generator=torch.Generator().manual_seed(1))
    target[1:2] = 0
    return (3 * draw(F64, rows, types)).to(dtype), target


def defined_sums(
    logits: Tensor, target: Tensor, shares: tuple[float, float] = SHARES, ignore: int = 0
) -> tuple[Tensor, ...]:
    """Return both sums, and GRAD times the gradient of their sum weighted by ``shares``, in float64."""
    exact = logits.double().requires_grad_()
    log_p = torch.log_softmax(exact[target != ignore], dim=-1)
    nll, all_sum = -log_p.gather(1, target[target != ignore].unsqueeze(1)).sum(), -log_p.sum()
    (gradient,) = torch.autograd.grad(GRAD * (shares[0] * nll + shares[1] * all_sum), exact)
    return nll.detach(), all_sum.detach(), gradient


def sums_of(run, logits: Tensor, target: Tensor, shares: tuple[float, float] = SHARES) -> tuple[Tensor, ...]:
    sums, log_sums = run.smoothed_nll(logits, target, 0)
    weight = torch.tensor(GRAD, dtype=torch.promote_types(logits.dtype, F32))
    return *sums, run.smoothed_nll_backward(weight, logits, target, log_sums, *shares, 0)


@each_run(
    "dtype, rows, types, stride",
    [
        *((BF16, 3, 8, 8), (BF16, 5, 4104, 4104), (BF16, 3, 1002, 1002), (BF16, 3, 771, 771), (BF16, 2, 16, 20)),
        *((F16, 300, 40, 40), (F16, 2, 1, 1), (F32, 3, 516, 516), (F32, 4, 67, 131), (F32, 3, 6, 8), (BF16, 5, 67, 67)),
        *((F32, 0, 5, 5), (F64, 3, 258, 258), (F64, 3, 5, 5), (F32, 7, 16, 16), (F32, 4, 1000, 1000), (F64, 1, 2, 2)),
    ],
)
def test_loss(run, dtype, rows, types, stride, set_threads):
    """The sums and the gradient are correct, and the same bits on any number of threads."""
    padded, target = rows_of_logits(rows, max(stride, 2), dtype)
    logits, target = padded[:, :types], target.clamp(max=types - 1)
    got = sums_of(run, logits, target)
    for a, b in zip(got, defined_sums(logits, target), strict=True):
        (close if b.ndim == 0 else assert_close)(a, b, dtype)
    assert (got[2][1:2] == 0).all()
    set_threads(5)
    assert all(torch.equal(a, b) for a, b in zip(got, sums_of(run, logits, target), strict=True))


@each_run("dtype", [(F16,), (BF16,), (F32,)])
def test_the_loss_of_large_logits(run, dtype):
    """In float32 the sum of their exponentials overflows, and their log-sum of 10,000 is rounded by 0.0005."""
    logits, target = rows_of_logits(3, 70, dtype)
    for shift in (1e4, -1e4):
        shifted = logits + shift
        for a, b in zip(sums_of(run, shifted, target), defined_sums(shifted, target), strict=True):
            # the sum over the vocabulary is a difference of large sums
            assert_close(a, b, dtype if b.ndim else BF16)


def test_the_loss_with_logits_of_minus_infinity(gpu):
    """Logits of -inf in whole vectors and for whole threads, none of a target, have no part in the softmax."""
    logits, target = rows_of_logits(4, 4000, F32)[0], torch.tensor([2001, 0, 3999, 2500])
    logits[:, :2000] = -torch.inf
    got = sums_of(gpu, logits, target, (1.0, 0.0))
    want = defined_sums(logits[:, 2000:], (target - 2000).clamp(min=0), (1.0, 0.0))
    assert_close(got[0] / 10, want[0] / 10, F32)
    assert got[1] == torch.inf
    assert_close(got[2][:, 2000:], want[2], F32)
    assert not got[2][:, :2000].any()


def test_the_loss_of_nan_and_infinity(run):
    """They stay in their row of the gradient, and change nothing in an ignored row."""
    for bad in (torch.nan, torch.inf):
        logits, target = rows_of_logits(4, 300, F32)
        logits[1] = bad
        assert all(part.isfinite().all() for part in sums_of(run, logits, target))
        logits[2, 7] = bad
        nll, all_sum, gradient = sums_of(run, logits, target)
        assert nll.isnan()
        assert all_sum.isnan()
        assert gradient[2].isnan().all()
        assert gradient[[0, 1, 3]].isfinite().all()
    everywhere, target = torch.full((3, 40), -torch.inf), torch.tensor([1, 0, 2])
    assert sums_of(run, everywhere, target)[2][[0, 2]].isnan().all()


def test_a_target_outside_the_vocabulary(run):
    """A CPU raises an error. A GPU, which the host would have to wait for, returns NaN."""
    for wrong in (-1, 30, 2**40):
        logits, target = rows_of_logits(3, 30, F32)
        target[2] = wrong
        if not run.gpu:
            with pytest.raises(RuntimeError, match=r"a target is outside 0\.\.V-1"):
                run.smoothed_nll(logits, target, 0)
            continue
        nll, _, gradient = sums_of(run, logits, target)
        assert nll.isnan()
        assert gradient[2].isnan().all()
        assert gradient[:2].isfinite().all()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("dtype", "ignore", "smoothing"), [(F32, 1, 0.1), (F64, -100, 0.0), (BF16, 1, 0.0), (F32, -100, 0.1)]
)
def test_the_smoothed_loss_in_any_layout(dtype, ignore, smoothing):
    """The values of an ignored row, NaN or not, change nothing and get no gradient."""
    logits, target = (3 * draw(F64, 11, 5)).to(dtype).T, torch.tensor([ignore, 4, 0, ignore, 10])
    logits[0], logits[3, 4] = torch.nan, torch.inf
    logits.requires_grad_()
    loss, nll = ops.smoothed_nll(logits, target, smoothing, ignore)
    shares = 1 - smoothing - smoothing / 10, smoothing / 10
    want_nll, all_sum, want = defined_sums(logits.detach(), target, shares, ignore)
    assert loss.dtype == nll.dtype == torch.promote_types(dtype, F32)
    assert_close(loss.detach(), shares[0] * want_nll + shares[1] * all_sum, dtype)
    assert_close(nll, want_nll, dtype)
    grad = torch.autograd.grad(loss * GRAD, logits)[0]
    assert grad.dtype == dtype
    assert_close(grad, want)
    assert torch.equal(grad[[0, 3]], torch.zeros(2, 11, dtype=dtype))


# ---- Residual, dropout and layer norm ----

# each has its own kernel: 2 to 8 warps per row, vectors of every width, and a rest that fills no vector
CHANNELS = [(F16, 512), (BF16, 1040), (F32, 4096), (F16, 1), (BF16, 6), (F32, 515), (F64, 1028), (F32, 36)]


def normed(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(z, z.shape[-1:], weight, bias, EPS)


@pytest.mark.parametrize(("dtype", "channels"), CHANNELS)
@settings(max_examples=6)
@given(
    count=st.integers(0, 11),
    p=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**62),
)
def test_residual_norm_and_its_gradients(gpu, dtype, channels, count, p, seed):
    """There may be any number of rows; their mean is far from zero."""
    x, y, grad = (draw(dtype, count, channels, seed=seed + i) for i in range(3))
    x = x + 10
    weight, bias = (draw(dtype, channels, seed=seed + i) for i in range(3, 5))
    exact = [t.double().requires_grad_() for t in (x, y, weight, bias)]
    factors = dropout_factors(x.numel(), p, seed).view(x.shape) if p > 0 else torch.ones(x.shape, dtype=F64)
    z = exact[0] + exact[1] * factors
    number = torch.tensor([seed]) if p > 0 else None
    out, sums, stats = gpu.residual_norm(x, y, weight, bias, p, number, EPS)
    assert_close(sums, z.detach(), dtype)
    z.data.copy_(sums)  # the norm is that of the rows as they are stored
    want = normed(z, *exact[2:])
    assert_close(out, want.detach(), dtype)
    gradients = torch.autograd.grad(want, exact, grad.double())
    of_x, of_y, of_affine = gpu.residual_norm_backward(grad, sums, weight, stats, p, number)
    for a, b in zip((of_x, of_y if p > 0 else of_x, *of_affine), gradients, strict=True):
        close(a, b, dtype)


def test_more_rows_than_blocks_are_the_same_bits_every_time(gpu):
    x, grad = draw(F32, 2400, 6), draw(F32, 2400, 6, seed=1)
    weight, bias, seed = torch.ones(6), torch.zeros(6), torch.tensor([5])
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    results = []
    for _ in range(2):
        _, z, stats = gpu.residual_norm(x, x, weight, bias, 0.0, None, EPS)
        results.append(gpu.residual_norm_backward(grad, z, weight, stats, 0.0, seed))
    want = torch.autograd.grad(normed(2 * exact[0], *exact[1:]), exact, grad.double())
    assert_close(results[0][0] * 2, want[0])
    for got, sums in zip(results[0][2], want[1:], strict=True):
        close(got, sums)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def operands(dtype: torch.dtype) -> tuple[Tensor, ...]:
    shapes = ((3, 2, 6), (3, 2, 6), (6,), (6,))
    return tuple(draw(dtype, *shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_derivatives_of_residual_norm(p, cuda_kernels):
    """First and second derivatives use the same mask; the norm's weight and bias may be frozen."""
    seed, leaves = torch.tensor([77]) if p > 0 else None, operands(F64)

    def call(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return train.native_residual_norm(x, y, weight, bias, p, seed, EPS)

    for inputs in (leaves, (*leaves[:2], *(t.detach() for t in leaves[2:]))):
        assert "ResidualNorm" in str(call(*inputs).grad_fn)
        assert gradcheck(call, inputs)
        assert gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_residual_norm_draws_its_seed_from_torchs_generator(p, cuda_kernels):
    x, y, weight, bias = operands(F32)
    torch.manual_seed(3)
    got = ops.residual_norm(x, y, weight, bias, p, EPS)
    torch.manual_seed(3)
    factors = dropout_factors(36, p, int(torch.randint(2**62, (1,)))).view(3, 2, 6) if p > 0 else 1
    assert_close(got, normed(x.double() + y.double() * factors, weight.double(), bias.double()))
    assert ops.residual_norm(x, y.bfloat16(), weight, bias, p, EPS).dtype == F32  # by PyTorch
