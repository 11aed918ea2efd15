"""The operators on CPUs with every vector width, and on an emulated GPU, against the reference in float64."""

import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightconv_plugin.ops import reference
from tests.ops import native
from tests.ops.conftest import each_run
from tests.ops.equation import packed
from tests.ops.philox import factors, philox
from tests.tolerances import TOLERANCES, assert_close

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
SEED = 0x1234_5678_9ABC_DEF0
OPERATORS = ("light_conv", "dynamic_conv")


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
    offset: int = 0  # in elements: how far the tensors start from an address aligned for vectors
    batch: int = 2
    packed: tuple[int, ...] = ()  # lengths of the packed sentences
    begins: bool = False  # with an initial state

    def __str__(self) -> str:
        return "-".join(map(str, self[:11]))


CASES = [
    # split into tiles for matrix units
    Case(BF16, True, 31, 30, 64, (129,)),
    Case(BF16, True, 31, 15, 64, (2, 31), H=3),
    Case(BF16, True, 15, 7, 16, (31,), H=5, p=0.3),
    Case(BF16, False, 2, 1, 80, (2, 31)),
    Case(BF16, False, 31, 30, 64, (129,), p=0.1),
    Case(BF16, False, 15, 7, 64, (33,), softmax=False),
    Case(F16, True, 63, 31, 64, (70,)),
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
    # one kernel per channel
    *(Case(dtype, True, 4, 3, 1, (31, 70), H=48, softmax=False) for dtype in (F32, BF16, F16)),
    Case(BF16, False, 4, 3, 1, (31, 70), H=48, softmax=False),
    # convolutions of 16-bit types without matrix units
    Case(BF16, True, 7, 6, 64, (33,), capability=75),
    Case(BF16, True, 31, 15, 64, (33,), H=3, capability=75),
    Case(F16, False, 15, 14, 3, (31,), H=3, capability=75),
    # several bands
    Case(F16, True, 65, 3, 128, (33,), H=1, p=0.3),
    Case(BF16, False, 150, 149, 64, (70,), H=1, p=0.2),
    Case(F16, False, 200, 60, 7, (70,), H=3, softmax=False),
    Case(F32, True, 129, 64, 16, (70,), H=3, p=0.3),
    Case(F32, False, 65, 64, 3, (31,)),
    # float64, which runs only on CPUs
    Case(F64, True, 15, 7, 3, (1, 33), p=0.2),
    Case(F64, False, 7, 6, 16, (2, 31), p=0.2),
    Case(F64, False, 31, 15, 64, (33,), H=1, softmax=False),
]
PACKED = (0, 1, 200, 3, 0, 70, 9, 131, 0, 0)  # long sentences, which are split, among short and empty ones
# shapes for the CPU kernels
SHAPES = [
    # the last heads of a row fill whole vectors, the others do not
    *(Case(F32, False, K, K // 2, 4, (5, 20, 300), H=H) for K, H in ((3, 21), (7, 35))),
    # one kernel per channel; several blocks of positions; many heads
    *(
        Case(F32, dynamic, K, padding_l, R, lengths, H=H, p=p, batch=batch)
        for dynamic in (True, False)
        for K, padding_l, R, lengths, H, p, batch in (
            (5, 4, 1, (11, 135), 37, 0.3, 2),
            (3, 2, 64, (512, 700), 2, 0.0, 1),
            (65, 0, 3, (512, 700), 2, 0.0, 1),
            (7, 3, 3, (140,), 90, 0.3, 2),
        )
    ),
    # packed sentences, some with states; states longer and shorter than the text; small kernels, read in place or not
    *(
        Case(F32, dynamic, K, K - 1 if begins else K // 2, R, (), H=H, p=p, packed=PACKED, begins=begins)
        for dynamic in (True, False)
        for H, R, K, p, begins in (
            *((2, 32, 31, 0.4, False), (12, 2, 3, 0.0, False), (3, 3, 70, 0.0, False), (40, 1, 4, 0.4, False)),
            *((2, 32, 31, 0.0, True), (12, 2, 3, 0.4, True), (2, 64, 5, 0.0, True)),
        )
    ),
    *(
        Case(F32, dynamic, K, K - 1, R, (1, K - 1, 150) if K > 1 else (3,), H=H, p=p, begins=True)
        for dynamic in (True, False)
        for H, R, K, p in ((2, 32, 31, 0.4), (3, 3, 70, 0.0), (40, 1, 4, 0.4), (2, 64, 5, 0.0), (2, 16, 1, 0.0))
    ),
]


def draw(shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> Tensor:
    storage = torch.randn(torch.Size(shape).numel() + offset, dtype=F64).to(dtype)
    return storage[offset:].view(shape)


def operands(case: Case, time: int) -> tuple[Tensor, ...]:
    """Return x, weight, the gradient of the output and, if the case begins with one, the state."""
    batch, rows = 1 if case.packed else case.batch, sum(case.packed) or time
    x, grad = (draw((rows, batch, case.H * case.R), case.dtype, case.offset) for _ in range(2))
    weight = draw(((rows, batch) if case.dynamic else ()) + (case.H, case.K), case.dtype, case.offset)
    state = [draw((case.K - 1, len(case.packed) or batch, case.H * case.R), case.dtype)] if case.begins else []
    return x, weight, grad, *state


def expected(case: Case, x: Tensor, weight: Tensor, grad: Tensor, *begins: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients in float64."""
    x, weight, *states = inputs = [t.double().requires_grad_() for t in (x, weight, *begins)]
    kernel, shape = (
        reference.normalize_kernel(weight, "softmax" if case.softmax else "none"),
        (*x.shape[:2], case.H, case.K),
    )
    kernel = kernel.expand(shape) * factors(shape, case.p, SEED) if case.p > 0 else kernel.expand(shape)
    options: dict[str, Any] = {"padding_l": case.padding_l, "normalization": "none"}
    options["initial_state"] = states[0] if states else None
    if case.packed:
        offsets = torch.tensor([0, *itertools.accumulate(case.packed)])
        out = packed("dynamic_conv", x[:, 0], kernel[:, 0], offsets, **options).unsqueeze(1)
    else:
        out = reference.dynamic_conv(x, kernel, **options)
    return out.detach(), *torch.autograd.grad(out, inputs, grad.double())


def turned(t: Tensor) -> Tensor:
    """Return the same (T, B, ...) tensor, stored batch first."""
    return t.transpose(0, 1).contiguous().transpose(0, 1) if t.ndim > 2 else t


def check(run, case: Case, *tensors: Tensor) -> None:
    """Check output and gradients: computed together, one by one, and batch first; on a CPU these agree to the bit."""
    x, weight, grad, *begins = tensors
    seed = torch.tensor([SEED]) if case.p > 0 else None
    options = (case.padding_l, case.softmax, case.p, seed)
    offsets = torch.tensor([0, *itertools.accumulate(case.packed)]) if case.packed else None
    indices = range(2 + len(begins))  # of x, weight and any state

    def call(x: Tensor, weight: Tensor, grad: Tensor, state: Tensor | None = None) -> list[Tensor]:
        need = True, True, state is not None
        out = getattr(run, OPERATORS[case.dynamic])(x, weight, *options, offsets, state)
        return [out, *run.conv_backward(grad, x, weight, *options, *need, offsets, state)[: len(indices)]]

    results, want = call(*tensors), expected(case, *tensors)
    # a light kernel's gradient is a sum over all positions: its error is relative to its largest element
    scales = [1.0, 1.0, 1.0 if case.dynamic else max(1.0, want[2].abs().max().item()), *(1.0 for _ in begins)]
    for got, exact, scale in zip(results, want, scales, strict=True):
        assert_close(got / scale, exact / scale, case.dtype)
    wide = weight.ndim == 2 and not case.softmax and case.dtype != F64
    assert [t.dtype for t in results[:3]] == [case.dtype, case.dtype, F32 if wide else case.dtype]
    state = begins[0] if begins else None
    alone = [run.conv_backward(grad, x, weight, *options, *(i == j for j in range(3)), offsets, state) for i in indices]
    repeated = [[results[0], *(alone[i][i] for i in indices)]]
    if not (case.offset or case.packed):
        repeated.append(call(*map(turned, tensors)))
        assert all(t.stride() == turned(x).stride() for t in repeated[1][:2])
    for result in repeated:
        for got, exact, scale, first in zip(result, want, scales, results, strict=True):
            if run.gpu:  # the kernel of both gradients is not that of one
                assert_close(got / scale, exact / scale, case.dtype)
            else:
                assert torch.equal(got, first)


def runs_on(device: int | str, case: Case) -> bool:
    return case.dtype != F64 if device == "gpu" else case.capability == 90 and case.dtype != F16


@each_run("case", [(case,) for case in CASES], runs_on)
def test_table(run, case):
    run.capability = case.capability
    torch.manual_seed(0)
    for time in case.lengths:
        check(run, case, *operands(case, time))


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: "-".join(map(str, case[1:])))
def test_shapes_of_cpus(cpu, case):
    """Every shape in float32 and, in turn, in float64 or bfloat16."""
    torch.manual_seed(0)
    for dtype in (F32, (F64, BF16)[SHAPES.index(case) % 2]):
        for time in case.lengths or (0,):
            check(cpu, case._replace(dtype=dtype), *operands(case._replace(dtype=dtype), time))


@pytest.mark.parametrize("dynamic", [False, True])
def test_widths_and_ratios_of_cpus(cpu, dynamic):
    """Every kernel width with every number of channels per head, in two types; lengths and paddings alternate."""
    for at, (K, R) in enumerate(itertools.product((1, 2, 3, 7, 15, 31, 32, 63, 65), (1, 3, 16, 64, 80))):
        lengths = sorted({1, 2, max(1, K - 1), K, K + 1, 31, 33, 129, 151})
        for dtype in (F32, (F64, BF16)[at % 2]):
            case = Case(dtype, dynamic, K, (0, K // 2, K - 1)[at // 3 % 3], R, ())
            check(cpu, case, *operands(case, lengths[at % len(lengths)]))


# with one channel per head, each channel has its kernel; without softmax whole vectors of them are read in place
@settings(max_examples=40)
@given(data=st.data())
def test_few_taps_and_few_channels_a_head_of_cpus(cpu, data):
    K, H = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 3, 16, 37, 64, 272]))
    lengths = tuple(data.draw(st.lists(st.integers(0, 150), max_size=4)))
    begins = data.draw(st.booleans())
    case = Case(
        dtype=data.draw(st.sampled_from([F64, F32, BF16])),
        dynamic=data.draw(st.sampled_from([True, True, False])),
        K=K,
        padding_l=K - 1 if begins else data.draw(st.integers(0, K - 1)),
        R=data.draw(st.sampled_from([1, 1, 2, 3, 7, 8])),
        lengths=(),
        H=H,
        p=data.draw(st.sampled_from([0.0, 0.0, 0.4])),
        softmax=data.draw(st.booleans()),
        batch=data.draw(st.integers(1, 3)),
        packed=lengths if sum(lengths) else (),
        begins=begins,
    )
    torch.manual_seed(0)
    check(cpu, case, *operands(case, data.draw(st.integers(1, 150))))


@pytest.mark.parametrize(("heads", "ratio"), [(64, 1), (1, 64)])
def test_every_number_of_16_bits_is_read_and_rounded_as_torch_does(cpu, heads, ratio):
    """Products of two such numbers are exact in float32, within its range; NaN and infinity are included."""
    every = torch.arange(2**16).to(torch.uint16).view(BF16)
    for factor in (1.0, 0.3, 3.0, -(2.0**-12)):
        constant = torch.full_like(every, factor)
        for x, weight in ((every, constant), (constant, every)):
            logits = weight.view(-1, 1, 64, 1)[:, :, :: 64 // heads].contiguous()
            got = cpu.dynamic_conv(x.view(-1, 1, 64), logits, 0, False, 0.0, None)
            kernel = logits.repeat_interleave(ratio, 2)[..., 0].float()
            want = (x.view(-1, 1, 64).float() * kernel).to(BF16)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("heads", "K"), [(2, 7), (40, 4)])
@pytest.mark.parametrize("name", OPERATORS)
def test_non_contiguous_tensors(name, heads, K):
    """Slices, transposed and expanded inputs give the same bits as contiguous copies."""
    x, weight = draw((40, 3, 40), F64), draw((heads, K) if name == "light_conv" else (40, 3, heads, K), F64)
    pairs = [
        (torch.cat([x, x], dim=2)[..., 5:45], weight),
        (turned(x), weight),
        (x, torch.stack([weight, weight], dim=-1)[..., 0]),
        (x[:1].expand_as(x), weight[..., :1].expand_as(weight)),
    ]
    call = getattr(native, name)
    for pair in pairs:
        results = []
        for tensors in (pair, [t.contiguous() for t in pair]):
            leaves = [t.detach().requires_grad_() for t in tensors]
            out = call(*leaves, padding_l=3)
            results.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_not_finite_spreads_as_far_as_the_kernel_reaches(run, name):
    """A non-finite element of x or of the gradient reaches all positions that its kernel covers, and no others."""
    shapes = [(F32, 60, 7, padding_l, 20) for padding_l in (0, 2, 6)] + [(BF16, 31, 31, 15, 64), (BF16, 33, 70, 20, 64)]
    for dtype, time, K, padding_l, R in [*shapes, (F32 if run.gpu else F64, 60, 7, 2, 20), (BF16, 31, 2, 1, 80)]:
        heads = 3 if name == "dynamic_conv" else 2
        weight = draw((time, 2, heads, K) if name == "dynamic_conv" else (heads, K), dtype)
        options = (padding_l, True, 0.0, None)
        for at, bad in ((7, math.nan), (time - 1, -math.inf)) if run.gpu else ((0, -math.inf), (7, math.nan)):
            x = draw((time, 2, heads * R), dtype)
            x[at, 1, 5] = bad
            out = getattr(run, name)(x, weight, *options)
            want = torch.zeros_like(x, dtype=torch.bool)
            want[[i for i in range(time) if 0 <= at - i + padding_l < K], 1, 5] = True
            assert torch.equal(~out.isfinite(), want)
            assert torch.equal(out[want].isnan(), torch.full((int(want.sum()),), math.isnan(bad)))
            finite = draw(tuple(x.shape), dtype)
            grad_x, grad_weight, _ = run.conv_backward(x, finite, weight, *options, True, True, False, None, None)
            want = torch.zeros_like(want)
            want[[s for s in range(time) if 0 <= s - at + padding_l < K], 1, 5] = True
            assert torch.equal(~grad_x.isfinite(), want)
            spoiled = torch.zeros(weight.shape[:-1], dtype=torch.bool)
            spoiled[(at, 1, 0) if name == "dynamic_conv" else 0] = True
            assert torch.equal(~grad_weight.isfinite().all(-1), spoiled)


# in the last case -inf fills whole vectors of logits
@each_run(
    "dtype, K",
    [(F32, 7), (F64, 7), (BF16, 7), (BF16, 400)],
    lambda device, dtype, K: dtype != F64 if device == "gpu" else K == 7,
)
def test_logits_that_are_not_finite(run, dtype, K):
    """As in torch.softmax, -inf gives weight 0; rows of -inf, or with NaN or +inf, give NaN in their head only."""
    run.capability = 90
    x, weight = draw((40, 2, 40), dtype), draw((40, 2, 2, K), dtype)
    weight[3, 0, 0, : K // 2] = -math.inf
    weight[10, 1, 1] = -math.inf
    weight[20, 0, 1, 6] = math.nan
    weight[30, 1, 0, 0] = math.inf
    got = run.dynamic_conv(x, weight, K // 2, True, 0.0, None)
    want = reference.dynamic_conv(x.double(), weight.double(), padding_l=K // 2)
    bad = torch.zeros(40, 2, 2, dtype=torch.bool)
    bad[[10, 20, 30], [1, 0, 1], [1, 1, 0]] = True
    assert torch.equal(got.isnan(), bad.repeat_interleave(20, dim=2))
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(got.double(), want, equal_nan=True, rtol=rtol, atol=atol)


def test_logits_far_apart(run):
    """The softmax does not overflow, and even very small weights differ from torch's only by rounding."""
    logits = torch.linspace(-300, 300, 63, dtype=F64).view(1, 63)
    identity = torch.eye(63, dtype=F64).view(63, 1, 63)
    for dtype in (F32,) if run.gpu else (F32, F64):
        weights = run.light_conv(identity[:, :, 31:32].to(dtype), logits.to(dtype), 31, True, 0.0, None).flatten()
        want = torch.softmax(logits.to(dtype).double(), dim=-1).flatten().flip(0)
        assert_close(weights, want)
        large = want > 1e-30
        torch.testing.assert_close(weights[large].double(), want[large], rtol=1e-5, atol=0)


@pytest.mark.parametrize(("dynamic", "p"), [(False, 0.3), (True, 0.0)])
def test_the_same_bits_every_time_on_any_number_of_threads(run, dynamic, p, set_threads):
    case = Case(F32, dynamic, 31, 15, 16, (), H=4, p=p)
    x, weight, grad = operands(case, 40 if run.gpu else 300)
    options, results = (15, True, p, torch.tensor([SEED])), []
    for threads in (1, 2, 2, 64):
        set_threads(threads)
        gradients = run.conv_backward(grad, x, weight, *options, True, True, False, None, None)
        results.append((getattr(run, OPERATORS[dynamic])(x, weight, *options), *gradients))
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(results[0], result, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"padding_l": 7}, "padding_l is outside"),
        ({"p": 0.5}, "needs a seed"),
        ({"weight": torch.zeros(3, 7)}, "heads do not divide"),
        ({"weight": torch.zeros(2, 7).double()}, "differ in type"),
        ({"weight": torch.zeros(9, 2, 2, 7)}, "another T or B"),
        ({"x": torch.zeros(5, 1, 4), "offsets": torch.tensor([0, 4])}, "offsets|packed sentences"),
        ({"state": torch.zeros(6, 2, 4)}, "only a causal convolution|states have kernels"),
        ({"padding_l": 6, "state": torch.zeros(6, 1, 4)}, r"a state \(K - 1, sentences, C\)|states have kernels"),
    ],
)
def test_raw_operators_check_their_arguments(run, change, message):
    """They must, since a compiled graph calls them without the checks in Python."""
    arguments = {"x": torch.zeros(8, 2, 4), "weight": torch.zeros(2, 7), "padding_l": 3, "p": 0.0} | change
    options = arguments["padding_l"], True, arguments["p"], None, arguments.get("offsets"), arguments.get("state")
    with pytest.raises(RuntimeError, match=message):
        run.light_conv(arguments["x"], arguments["weight"], *options)


# ---- DropConnect ----


def test_the_generator_gives_a_known_answer():
    """The answer is from Random123's kat_vectors, for 7 rounds. The tests above compare the kernels with it."""
    words = philox([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0))
    assert words == [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A]


def test_the_seed_is_read_at_each_call(run):
    """A changed seed gives another mask, so that a captured graph draws a new one at every replay."""
    x, weight, seed = torch.ones(33, 2, 128, dtype=BF16), torch.zeros(2, 31, dtype=BF16), torch.tensor([1])
    first = run.light_conv(x, weight, 30, True, 0.1, seed)
    seed += 1
    assert not torch.equal(first, run.light_conv(x, weight, 30, True, 0.1, seed))


def test_a_dropout_probability_that_rounds_to_one(run):
    """In float32, 1 - 1e-9 is 1: every weight is dropped."""
    for shape in ((4, 3), (5, 2, 4, 3)):
        name = OPERATORS[len(shape) == 4]
        out = getattr(run, name)(torch.randn(5, 2, 8), torch.randn(shape), 2, True, 1 - 1e-9, torch.tensor([3]))
        assert torch.equal(out, torch.zeros(5, 2, 8))
