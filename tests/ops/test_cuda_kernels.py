"""The CUDA kernels, run on a CPU (cuda_on_cpu.py), against the float64 reference."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lightconv_plugin.ops import reference
from tests.ops.cuda_on_cpu import Machine
from tests.ops.philox import factors
from tests.tolerances import assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
SEED = 0x1234_5678_9ABC_DEF0


class Case(NamedTuple):
    dtype: torch.dtype
    dynamic: bool
    K: int
    padding_l: int
    R: int
    lengths: tuple[int, ...]
    H: int = 2
    p: float = 0.0
    softmax: bool = True
    capability: int = 90
    offset: int = 0  # elements by which the tensors miss an address that vectors want


CASES = [
    Case(BF16, True, 31, 30, 64, (33, 129)),
    Case(BF16, True, 31, 15, 64, (1, 2, 31), H=3),
    Case(BF16, True, 7, 6, 64, (33,), capability=75),
    Case(BF16, True, 15, 7, 16, (31,), H=5, p=0.3),
    Case(BF16, False, 2, 1, 80, (2, 31)),
    Case(BF16, False, 31, 30, 64, (33, 129), p=0.1),
    Case(BF16, False, 15, 7, 64, (33,), softmax=False),
    Case(F16, True, 63, 31, 64, (33, 129)),
    Case(F16, True, 3, 1, 320, (31,), H=1),
    Case(F16, True, 31, 15, 128, (17, 40), H=3, p=0.1),
    Case(BF16, False, 31, 30, 192, (40,), H=1, p=0.1),
    Case(F16, False, 15, 14, 3, (31,), H=3),
    Case(F16, False, 64, 10, 1, (129,), H=4),
    Case(F32, True, 1, 0, 1, (1, 31), H=40),
    Case(F32, True, 32, 10, 16, (33,), H=3, p=0.5),
    Case(F32, True, 7, 3, 3, (31,), H=4, softmax=False),
    Case(F32, True, 31, 30, 64, (129,)),
    Case(F32, False, 3, 1, 80, (33,)),
    Case(F32, False, 31, 30, 16, (31,), p=0.2, H=3),
    Case(BF16, True, 7, 3, 64, (31,), offset=1),
    # convolutions of 16-bit types without matrix units
    Case(BF16, True, 31, 15, 64, (33,), H=3, capability=75),
    Case(F16, False, 15, 14, 3, (31,), H=3, capability=75),
    # several bands
    Case(BF16, True, 64, 63, 40, (97,), H=3),
    Case(F16, True, 65, 3, 128, (70,), H=1, p=0.3),
    Case(BF16, False, 150, 149, 64, (129,), H=1, p=0.2),
    Case(F16, False, 200, 60, 7, (300,), H=5, softmax=False),
    Case(BF16, True, 129, 64, 3, (50,), softmax=False, offset=1),
    Case(BF16, False, 300, 20, 320, (33,), H=1),
    Case(F32, True, 129, 64, 16, (70,), H=3, p=0.3),
    Case(F32, False, 128, 127, 64, (129,), H=1),
    Case(F16, True, 100, 50, 24, (70,), capability=75),
    Case(BF16, False, 67, 3, 64, (40,), p=0.1, capability=75),
    # the general kernels: float64
    Case(F64, True, 15, 7, 3, (1, 33), p=0.2),
    Case(F64, False, 7, 6, 16, (2, 31), p=0.2),
    Case(F64, False, 31, 15, 64, (33,), H=1, softmax=False),
    Case(BF16, True, 65, 32, 64, (31, 129)),
    Case(F32, False, 65, 64, 3, (31,)),
    Case(F16, False, 65, 64, 3, (31,), softmax=False),
]


@pytest.fixture(scope="module")
def gpu() -> Machine:
    return Machine()


def make(shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Tensor:
    storage = torch.randn(torch.Size(shape).numel() + offset, dtype=F64).to(dtype)
    return storage[offset:].view(shape)


def expected(case: Case, x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output and gradients in float64."""
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    kernel = reference.normalize_kernel(weight, "softmax" if case.softmax else "none")
    shape = (*x.shape[:2], case.H, case.K)
    if case.p > 0:
        kernel = kernel.expand(shape) * factors(shape, case.p, SEED)
    out = reference.dynamic_conv(x, kernel.expand(shape), padding_l=case.padding_l, normalization="none")
    grad_x, grad_weight = torch.autograd.grad(out, (x, weight), grad.double())
    return out.detach(), grad_x, grad_weight


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_forward_and_gradients(gpu, case):
    torch.manual_seed(0)
    gpu.capability = case.capability
    for time in case.lengths:
        shape = (time, 2, case.H, case.K) if case.dynamic else (case.H, case.K)
        x, grad = (make((time, 2, case.H * case.R), case.dtype, case.offset) for _ in range(2))
        weight = make(shape, case.dtype, case.offset)
        options = (case.padding_l, case.softmax, case.p, torch.tensor([SEED]) if case.p > 0 else None)
        results = [gpu.forward(x, weight, *options), *gpu.backward(grad, x, weight, *options)]
        wanted = [*expected(case, x, weight, grad)]
        if case.dtype in (F16, BF16) and case.capability >= 80:  # one kernel for both gradients; and each alone
            results.append(gpu.backward(grad, x, weight, *options, wanted=(True, False))[0])
            results.append(gpu.backward(grad, x, weight, *options, wanted=(False, True))[1])
            wanted += wanted[1:]
        if not case.offset:  # batch first
            turned = [t.transpose(0, 1).contiguous().transpose(0, 1) if t.ndim > 2 else t for t in (x, weight, grad)]
            results += [gpu.forward(*turned[:2], *options), *gpu.backward(turned[2], *turned[:2], *options)]
            wanted += wanted[:3]
        for got, want in zip(results, wanted, strict=True):
            # a light kernel's gradient is a sum over all positions; its error is that of the largest of them
            scale = max(1.0, want.abs().max().item()) if want.shape == (case.H, case.K) else 1.0
            assert_close(got / scale, want / scale, case.dtype)


def test_gradients_are_the_same_bits_every_time(gpu):
    x, grad, weight = make((129, 2, 128), BF16), make((129, 2, 128), BF16), make((2, 31), BF16)
    first = gpu.backward(grad, x, weight, 30, True, 0.1, torch.tensor([SEED]))
    again = gpu.backward(grad, x, weight, 30, True, 0.1, torch.tensor([SEED]))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_mask_is_read_anew_from_the_seed(gpu):
    x, weight, seed = torch.ones(33, 2, 128, dtype=BF16), torch.zeros(2, 31, dtype=BF16), torch.tensor([1])
    first = gpu.forward(x, weight, 30, True, 0.1, seed)
    seed += 1
    assert not torch.equal(first, gpu.forward(x, weight, 30, True, 0.1, seed))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dynamic", [True, False])
def test_what_is_not_finite_stays_in_reach(gpu, bad, dynamic):
    """One channel of one position spoils the outputs whose kernel covers it, and no other."""
    gpu.capability = 90
    K, padding_l, R = (31, 15, 64) if dynamic else (2, 1, 80)
    weight = make((31, 2, 3, K), BF16) if dynamic else make((2, K), BF16)
    heads = weight.shape[-2]
    for at in (0, 7, 30):
        x = make((31, 2, heads * R), BF16)
        x[at, 1, 5] = bad
        spoiled = ~torch.isfinite(gpu.forward(x, weight, padding_l))
        reach = [i for i in range(31) if 0 <= at - i + padding_l < K]
        want = torch.zeros_like(spoiled)
        want[reach, 1, 5] = True
        assert torch.equal(spoiled, want)
        grad_x, grad_weight = gpu.backward(x, torch.ones_like(x), weight, padding_l)
        want.zero_()
        want[[s for s in range(31) if 0 <= s - at + padding_l < K], 1, 5] = True
        assert torch.equal(~torch.isfinite(grad_x), want)
        if dynamic:
            assert torch.equal(
                ~torch.isfinite(grad_weight).all(-1),
                want.view(31, 2, heads, R)[:, :, :, 5] & False
                | (
                    torch.arange(31).view(-1, 1, 1).eq(at)
                    & torch.arange(2).view(1, -1, 1).eq(1)
                    & torch.arange(heads).eq(0)
                ),
            )


@pytest.mark.parametrize("K", [31, 400])
def test_taps_that_are_ruled_out(gpu, K):
    """-inf has no part in the softmax, though it fills whole vectors of the logits."""
    torch.manual_seed(0)
    gpu.capability = 90
    case = Case(BF16, True, K, K - 1, 16, ())
    x, grad, weight = make((40, 2, 32), BF16), make((40, 2, 32), BF16), make((40, 2, 2, K), BF16)
    weight[..., : K // 2] = -torch.inf
    results = (gpu.forward(x, weight, K - 1), *gpu.backward(grad, x, weight, K - 1))
    for got, want in zip(results, expected(case, x, weight, grad), strict=True):
        assert_close(got, want, BF16)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("dtype", "channels"), [(BF16, 64), (F16, 6), (F32, 5), (F64, 4)])
def test_glu_and_mask(gpu, dtype, channels, masked):
    torch.manual_seed(0)
    x, grad = make((7, 3, 2 * channels), dtype), make((7, 3, channels), dtype)
    mask = torch.rand(3, 7) < 0.3 if masked else None
    if mask is not None:
        x[mask.t()] = torch.nan
    exact = x.double().requires_grad_()
    want = reference.glu_mask(exact, mask)
    (want_grad,) = torch.autograd.grad(want, exact, grad.double())
    assert_close(gpu.glu(x, mask), want.detach(), dtype)
    keep = slice(None) if mask is None else ~mask.t()
    got = gpu.glu(x, mask, grad)
    assert_close(got[keep], want_grad[keep], dtype)
    if mask is not None:
        assert (got[mask.t()] == 0).all()


def rows_of_logits(rows: int, types: int, dtype: torch.dtype, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    """Logits (rows, types) and targets, of which the second does not count."""
    logits, target = (scale * torch.randn(rows, types, dtype=F64)).to(dtype), torch.randint(1, types, (rows,))
    target[1:2] = 0
    return logits, target


def defined_loss(logits: Tensor, target: Tensor, shares: tuple[float, float], grad: float) -> tuple[Tensor, ...]:
    """Both sums, and grad times the gradient of their sum by ``shares``, in float64."""
    exact = logits.double().requires_grad_()
    log_p = torch.log_softmax(exact[target != 0], dim=-1)
    nll, everything = -log_p.gather(1, target[target != 0].unsqueeze(1)).sum(), -log_p.sum()
    (gradient,) = torch.autograd.grad(grad * (shares[0] * nll + shares[1] * everything), exact)
    return nll.detach(), everything.detach(), gradient


def loss_on(
    gpu: Machine, logits: Tensor, target: Tensor, shares: tuple[float, float], grad: float
) -> tuple[Tensor, ...]:
    sums, log_sums = gpu.loss(logits, target, 0)
    weight = torch.tensor(grad, dtype=torch.promote_types(logits.dtype, F32))
    return *sums, gpu.loss_backward(weight, logits, target, log_sums, shares, 0)


SHARES = (0.8, 0.1)


@pytest.mark.parametrize(
    ("dtype", "rows", "types", "stride"),
    [
        *((BF16, 3, 8, 8), (BF16, 5, 4104, 4104), (BF16, 3, 1002, 1002), (BF16, 3, 771, 771), (BF16, 2, 16, 20)),
        *((F16, 300, 40, 40), (F16, 2, 1, 1), (F32, 3, 516, 516), (F32, 4, 67, 131), (F32, 3, 6, 8)),
        *((F32, 0, 5, 5), (F64, 3, 258, 258), (F64, 3, 5, 5)),
    ],
)
def test_loss(gpu, dtype, rows, types, stride):
    torch.manual_seed(0)
    padded, target = rows_of_logits(rows, max(stride, 2), dtype)
    logits, target = padded[:, :types], target.clamp(max=types - 1)
    got = loss_on(gpu, logits, target, SHARES, 0.5)
    for a, b in zip(got, defined_loss(logits, target, SHARES, 0.5), strict=True):
        scale = max(1.0, b.abs().max().item()) if b.ndim == 0 else 1.0
        assert_close(a / scale, b / scale, dtype)
    assert (got[2][1:2] == 0).all()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_the_loss_of_large_logits(gpu, dtype):
    """A sum of their exps has no place in float32, and their log-sum, 10,000, is rounded by 0.0005 there."""
    torch.manual_seed(0)
    logits, target = rows_of_logits(3, 70, dtype)
    for shift in (1e4, -1e4):
        shifted = logits + shift
        got, want = loss_on(gpu, shifted, target, SHARES, 1.0), defined_loss(shifted, target, SHARES, 1.0)
        for a, b in zip(got, want, strict=True):
            # a sum over all types is a difference of sums of large numbers
            assert_close(a, b, dtype if b.ndim else BF16)


def test_the_loss_where_types_are_ruled_out(gpu):
    """-inf at types that are no target, in whole vectors of them and in whole threads, has no part in the softmax."""
    torch.manual_seed(0)
    logits, target = rows_of_logits(4, 4000, F32)[0], torch.tensor([2001, 0, 3999, 2500])
    logits[:, :2000] = -torch.inf
    got = loss_on(gpu, logits, target, (1.0, 0.0), 1.0)
    want = defined_loss(logits[:, 2000:], (target - 2000).clamp(min=0), (1.0, 0.0), 1.0)
    assert_close(got[0] / 10, want[0] / 10, F32)
    assert got[1] == torch.inf
    assert_close(got[2][:, 2000:], want[2], F32)
    assert not got[2][:, :2000].any()


def test_the_loss_of_what_is_not_a_number(gpu):
    """Stays in its row of the gradient, and does not come out of rows that do not count."""
    for bad in (torch.nan, torch.inf):
        logits, target = rows_of_logits(4, 300, F32)
        logits[1] = bad
        assert all(part.isfinite().all() for part in loss_on(gpu, logits, target, SHARES, 1.0))
        logits[2, 7] = bad
        nll, everything, gradient = loss_on(gpu, logits, target, SHARES, 1.0)
        assert nll.isnan()
        assert everything.isnan()
        assert gradient[2].isnan().all()
        assert gradient[[0, 1, 3]].isfinite().all()
    everywhere, target = torch.full((3, 40), -torch.inf), torch.tensor([1, 0, 2])
    assert loss_on(gpu, everywhere, target, SHARES, 1.0)[2][[0, 2]].isnan().all()


def test_a_target_that_is_no_type_gives_nan(gpu):
    for wrong in (-1, 30, 2**40):
        logits, target = rows_of_logits(3, 30, F32)
        target[2] = wrong
        nll, _, gradient = loss_on(gpu, logits, target, SHARES, 1.0)
        assert nll.isnan()
        assert gradient[2].isnan().all()
        assert gradient[:2].isfinite().all()


def test_the_loss_is_the_same_bits_every_time(gpu):
    torch.manual_seed(0)
    logits, target = rows_of_logits(600, 96, BF16)
    first, again = (loss_on(gpu, logits, target, SHARES, 1.0) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("dtype", "dynamic", "K", "H", "R", "softmax"),
    [
        (BF16, True, 3, 2, 64, True),
        (F16, False, 5, 3, 3, True),
        (F32, True, 31, 2, 16, False),
        (F64, True, 1, 2, 5, True),
    ],
)
def test_decoding_steps(gpu, dtype, dynamic, K, H, R, softmax):
    """With hypotheses that change places, and come and go, as beam search has them."""
    torch.manual_seed(0)
    N, M = 4, 6
    ring, ancestors = make((K, M, H * R), dtype), torch.zeros(K, N, dtype=torch.int32)
    position = torch.zeros(1, dtype=torch.int64)
    past: list[Tensor] = []
    light = make((H, K), dtype)
    for i in range(2 * K + 3):
        x = make((1, N, H * R), dtype)
        weight = make((1, N, H, K), dtype) if dynamic else light
        past = [*past, x.double()][-K:]
        name = "softmax" if softmax else "none"
        kernel = reference.normalize_kernel(weight.double(), name).expand(1, N, H, K)[..., K - len(past) :]
        window = torch.cat(past).view(len(past), N, H, R)
        want = torch.einsum("bnht,tnhr->bnhr", kernel, window).reshape(1, N, -1)
        assert_close(gpu.step(x, weight, ring, ancestors, position, softmax), want, dtype)
        assert position.item() == i + 1
        order = torch.randint(N, (5 if N == 4 else 4,))
        ancestors, past, N = ancestors[:, order].contiguous(), [p[:, order] for p in past], len(order)
