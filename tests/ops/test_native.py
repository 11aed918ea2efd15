"""The native kernels, at every vector width that the machine has, against the float64 reference."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import reference
from tests.ops import native
from tests.ops.conftest import VECTOR_BITS
from tests.ops.equation import convolve
from tests.tolerances import TOLERANCES, assert_close

WIDTHS = (1, 2, 3, 7, 15, 31, 32, 63, 65)
RATIOS = (1, 3, 16, 64, 80)


@pytest.fixture(scope="module", autouse=True)
def widest() -> Iterator[int]:
    bits = torch.ops.lightconv.cpu_vector_bits(0)
    yield bits
    torch.ops.lightconv.cpu_vector_bits(bits)


def every_width_of_vector() -> Iterator[int]:
    """Set each in turn, the widest last."""
    for bits in VECTOR_BITS:
        yield torch.ops.lightconv.cpu_vector_bits(bits)


def draw(operator: str, time: int, batch: int, heads: int, ratio: int, width: int, dtype: torch.dtype, seed: int = 0):
    """x, weight and the output's gradient; scaled so that outputs and gradients are of the order of 1."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(time, batch, heads * ratio, generator=g)
    shape = (heads, width) if operator == "light_conv" else (time, batch, heads, width)
    weight = torch.randn(shape, generator=g)
    positions = time * batch if operator == "light_conv" else 1
    grad = torch.randn(x.shape, generator=g) / math.sqrt(ratio * positions)
    return x.to(dtype), weight.to(dtype), grad.to(dtype)


def with_gradients(call, x: Tensor, weight: Tensor, grad: Tensor, **options) -> tuple[Tensor, ...]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    out = call(x, weight, **options)
    return out.detach(), *torch.autograd.grad(out, (x, weight), grad)


def check(operator: str, x: Tensor, weight: Tensor, grad: Tensor, **options) -> None:
    expected = with_gradients(getattr(reference, operator), x.double(), weight.double(), grad.double(), **options)
    for bits in every_width_of_vector():
        got = with_gradients(getattr(native, operator), x, weight, grad, **options)
        for name, a, b in zip(("output", "gradient of x", "gradient of weight"), got, expected, strict=True):
            assert a.dtype == x.dtype
            try:
                assert_close(a, b)
            except AssertionError as error:
                case = f"{operator} {tuple(x.shape)} {tuple(weight.shape)} {x.dtype} {options}"
                raise AssertionError(f"{name}, {bits} bits, {case}: {error}") from error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("operator", ["light_conv", "dynamic_conv"])
def test_against_the_reference(operator, dtype):
    """Each width of kernel with each padding and ratio, at lengths in turn: each width meets each length."""
    turn = 0
    for width in WIDTHS:
        lengths = sorted({1, 2, max(1, width - 1), width, width + 1, 31, 33, 129, 151})
        for ratio, padding_l in itertools.product(RATIOS, sorted({0, width // 2, width - 1})):
            for _ in range(2):
                time = lengths[turn % len(lengths)]
                turn += 1
                check(operator, *draw(operator, time, 2, 2, ratio, width, dtype), padding_l=padding_l)


@pytest.mark.parametrize("normalization", ["softmax", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", range(1, 10))
def test_a_dynamic_kernel_for_each_channel(width, dtype, normalization):
    """Up to eight taps, kernels are put in order by whole vectors: some heads, then those that fill none."""
    for heads, time, padding_l in ((37, 11, width - 1), (300, 3, width // 2), (8, 140, 0)):
        x, weight, grad = draw("dynamic_conv", time, 2, heads, 1, width, dtype)
        check("dynamic_conv", x, weight, grad, padding_l=padding_l, normalization=normalization)


@pytest.mark.parametrize(("heads", "time"), [(21, 5), (35, 20), (35, 300)])
def test_units_of_fewer_heads(heads, time):
    """The last heads of a row fill whole vectors, the others do not: none writes beyond its own."""
    for width in (3, 7):
        check("light_conv", *draw("light_conv", time, 2, heads, 4, width, torch.float32), padding_l=width // 2)


@pytest.mark.parametrize("operator", ["light_conv", "dynamic_conv"])
@pytest.mark.parametrize("time", [512, 700])
@pytest.mark.parametrize("ratio", [3, 64, 80])
def test_long_sequences(operator, time, ratio):
    for width, padding_l in ((3, 2), (31, 15), (65, 0)):
        check(operator, *draw(operator, time, 1, 2, ratio, width, torch.float32), padding_l=padding_l)


@settings(max_examples=60, deadline=None)
@given(
    operator=st.sampled_from(["light_conv", "dynamic_conv"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    normalization=st.sampled_from(["softmax", "none", "sigmoid"]),
    time=st.integers(1, 70),
    batch=st.integers(1, 5),
    heads=st.integers(1, 40),
    ratio=st.integers(1, 35),
    width=st.integers(1, 40),
    data=st.data(),
)
def test_any_shape(operator, dtype, normalization, time, batch, heads, ratio, width, data):
    padding_l = data.draw(st.integers(0, width - 1))
    x, weight, grad = draw(operator, time, batch, heads, ratio, width, dtype)
    if normalization == "none":
        weight = weight / math.sqrt(width)
    check(operator, x, weight, grad, padding_l=padding_l, normalization=normalization)


@pytest.mark.parametrize("operator", ["light_conv", "dynamic_conv"])
def test_slices_transposes_and_expanded_inputs(operator):
    x, weight, grad = draw(operator, 40, 3, 2, 20, 7, torch.float64)
    wide = torch.cat([x, x], dim=2)
    check(operator, wide[..., 5:45], weight, grad, padding_l=3)
    check(operator, x.transpose(0, 1).contiguous().transpose(0, 1), weight, grad, padding_l=3)
    check(operator, x, torch.stack([weight, weight], dim=-1)[..., 0], grad, padding_l=3)
    check(operator, x[:1].expand_as(x), weight, grad[:, :, :1].expand_as(grad), padding_l=3)
    if operator == "dynamic_conv":
        check(operator, x, weight[:, :1].expand_as(weight), grad, padding_l=3)


@pytest.mark.parametrize("operator", ["light_conv", "dynamic_conv"])
def test_gradients_of_one_input_alone(operator):
    x, weight, grad = draw(operator, 20, 2, 2, 5, 7, torch.float64)
    call = getattr(native, operator)
    _, grad_x, grad_weight = with_gradients(call, x, weight, grad, padding_l=3)
    only_x, only_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(call(only_x, weight, padding_l=3), only_x, grad)[0], grad_x)
    assert_close(torch.autograd.grad(call(x, only_weight, padding_l=3), only_weight, grad)[0], grad_weight)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("padding_l", [0, 2, 6])
def test_what_is_not_finite_spreads_as_far_as_the_kernel_reaches(bad, padding_l):
    """The equation's loops, which never multiply what lies outside the kernel or the sequence."""
    x, weight, grad = draw("dynamic_conv", 60, 2, 2, 20, 7, torch.float64)
    x[31, 1, 5] = bad
    expected = convolve(x, weight, padding_l)
    assert not expected.isfinite().all()
    shared = convolve(x, weight[0, 0].expand_as(weight), padding_l)
    for _ in every_width_of_vector():
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            rtol, atol = TOLERANCES[dtype]
            got = native.dynamic_conv(x.to(dtype), weight.to(dtype), padding_l=padding_l)
            torch.testing.assert_close(got.double(), expected, equal_nan=True, rtol=rtol, atol=atol)
            got = native.light_conv(x.to(dtype), weight[0, 0].to(dtype), padding_l=padding_l)
            torch.testing.assert_close(got.double(), shared, equal_nan=True, rtol=rtol, atol=atol)
        # the gradient's way back: position t of x is seen by t + padding_l - j, tap j
        grad_bad = grad.clone()
        grad_bad[31, 1, 5] = bad
        finite = torch.nan_to_num(x, 0.0, 0.0, 0.0)
        _, grad_x, grad_weight = with_gradients(native.dynamic_conv, finite, weight, grad_bad, padding_l=padding_l)
        reached = torch.zeros_like(x, dtype=torch.bool)
        reached[max(0, 31 - padding_l) : 31 - padding_l + 7, 1, 5] = True
        assert torch.equal(~grad_x.isfinite(), reached)
        assert grad_weight[:31].isfinite().all()
        assert grad_weight[32:].isfinite().all()
        assert not grad_weight[31, 1, 0].isfinite().any()


def test_logits_that_are_not_finite():
    """As torch.softmax: -inf is weight 0; a row of -inf, or with NaN or +inf, is NaN, there and in that head alone."""
    x, weight, _ = draw("dynamic_conv", 40, 2, 2, 20, 7, torch.float64)
    weight[3, 0, 0, 2] = -math.inf
    weight[10, 1, 1] = -math.inf
    weight[20, 0, 1, 6] = math.nan
    weight[30, 1, 0, 0] = math.inf
    kernel = torch.softmax(weight, dim=-1)
    expected = native.dynamic_conv(x, kernel, padding_l=3, normalization="none")
    assert expected.isnan().sum() == 3 * 20
    for _ in every_width_of_vector():
        for dtype in (torch.float32, torch.float64):
            rtol, atol = TOLERANCES[dtype]
            got = native.dynamic_conv(x.to(dtype), weight.to(dtype), padding_l=3)
            torch.testing.assert_close(got.double(), expected, equal_nan=True, rtol=rtol, atol=atol)


def test_logits_far_apart():
    """The softmax does not overflow, and differs from torch's by rounding alone where weights vanish."""
    logits = torch.linspace(-300, 300, 63, dtype=torch.float64).view(1, 63)
    identity = torch.eye(63, dtype=torch.float64).view(63, 1, 63)
    for _ in every_width_of_vector():
        for dtype in (torch.float32, torch.float64):
            weights = native.light_conv(identity[:, :, 31:32].to(dtype), logits.to(dtype), padding_l=31).flatten()
            expected = torch.softmax(logits.to(dtype).double(), dim=-1).flatten().flip(0)
            assert_close(weights, expected)
            large = expected > 1e-30
            torch.testing.assert_close(weights[large].double(), expected[large], rtol=1e-5, atol=0)


@pytest.mark.parametrize("operator", ["light_conv", "dynamic_conv"])
@pytest.mark.parametrize("dropconnect", [0.0, 0.3])
def test_results_do_not_depend_on_the_number_of_threads(operator, dropconnect, set_threads):
    """Large enough for several threads to take part; bit for bit, and again on repetition."""
    x, weight, grad = draw(operator, 300, 4, 4, 16, 31, torch.float32)
    results = []
    for threads in (1, 2, 2, 3, 64):
        set_threads(threads)
        torch.manual_seed(0)
        call = getattr(native, operator)
        results.append(with_gradients(call, x, weight, grad, padding_l=15, dropconnect=dropconnect))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"padding_l": 7}, "padding_l is outside"),
        ({"dropconnect": 0.5}, "needs a seed"),
        ({"dropconnect": 1.0}, r"outside \[0, 1\)"),
        ({"weight": torch.zeros(3, 7)}, "heads do not divide"),
        ({"weight": torch.zeros(2, 7).double()}, "differ in type"),
        ({"weight": torch.zeros(9, 2, 2, 7)}, "another T or B"),
        ({"x": torch.zeros(5, 2)}, "expected x"),
    ],
)
def test_raw_operators_check_their_arguments(change, message):
    arguments = {"x": torch.zeros(8, 2, 4), "weight": torch.zeros(2, 7), "padding_l": 3, "dropconnect": 0.0} | change
    with pytest.raises(RuntimeError, match=message):
        torch.ops.lightconv.light_conv(
            arguments["x"], arguments["weight"], arguments["padding_l"], True, arguments["dropconnect"], None
        )


@pytest.mark.parametrize("backend", ops.BACKENDS)
def test_autocast_mixes_types(backend):
    """Under autocast a linear layer gives bfloat16 logits beside a float32 x: x's type is kept."""
    x, w, _ = draw("dynamic_conv", 9, 2, 2, 3, 4, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x.requires_grad_()
        logits = w.bfloat16().requires_grad_()
        out = ops.dynamic_conv(x, logits, padding_l=2, backend=backend)
        out.sum().backward()
        step, _ = ops.conv_step(x.detach()[:1], logits.detach()[:1], None, backend=backend)
    assert out.dtype == step.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    definition = reference.dynamic_conv(x.detach(), logits.detach().float(), padding_l=2)
    rounded = torch.bfloat16 if backend == "reference" else torch.float32  # its product is autocast's
    assert_close(out.detach(), definition, rounded)
