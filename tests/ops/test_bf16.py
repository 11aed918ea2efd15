"""Linear layers with products in bfloat16, compared with products of the rounded operands in float64."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops import library
from tests.ops.conftest import products_in
from tests.tolerances import assert_close

assert library.load() is None
BEST = torch.ops.lightconv.cpu_bf16_units(-1)
NUMBERS = list(range(1, BEST + 1))  # indices in BF16_UNITS of the units that this processor has


@pytest.fixture(autouse=True)
def bf16() -> Iterator[None]:
    with products_in("bf16"):
        yield
    torch.ops.lightconv.cpu_bf16_units(BEST)


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def draw(rows: int, width: int, out: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, weight, bias and the gradient of the output; the products are of the order of 1."""
    g = torch.Generator().manual_seed(rows + 7 * width + 11 * out)
    x, weight = torch.randn(rows, width, generator=g), torch.randn(out, width, generator=g) / width**0.5
    return x, weight, torch.randn(out, generator=g), torch.randn(rows, out, generator=g) / max(rows, out) ** 0.5


@settings(max_examples=60)
@given(rows=st.integers(1, 140), width=st.integers(1, 140), out=st.integers(1, 140), bias=st.booleans())
@example(rows=16, width=32, out=16, bias=True)
@example(rows=2100, width=33, out=40, bias=True)  # sums that are longer than one pass takes
@example(rows=40, width=2080, out=530, bias=True)
@example(rows=1, width=1030, out=1100, bias=False)
def test_products_and_gradients_are_those_of_the_rounded_operands(rows, width, out, bias):
    x, weight, shift, grad = draw(rows, width, out)
    leaves = [t.requires_grad_() for t in (x, weight, *([shift] if bias else []))]
    expected = (
        F.linear(rounded(x), rounded(weight), shift.double() if bias else None).detach(),
        rounded(grad) @ rounded(weight),
        rounded(grad).T @ rounded(x),
        grad.double().sum(dim=0),
    )
    for units in NUMBERS:
        torch.ops.lightconv.cpu_bf16_units(units)
        y = ops.linear(x, weight, shift if bias else None)
        gradients = torch.autograd.grad(y, leaves, grad)
        for got, want in zip((y.detach(), *gradients), expected, strict=False):
            assert_close(got, want)
        with torch.no_grad():  # a weight packed beforehand gives the same result
            packed = ops.linear(x, weight, shift if bias else None, ops.pack_weight(weight))
        assert torch.equal(packed, y)


@pytest.mark.parametrize("needs", [(0,), (1,), (2,), (1, 2), (0, 2)])
def test_only_the_gradients_that_are_asked_for(needs):
    tensors = list(draw(30, 20, 10)[:3])
    for index in needs:
        tensors[index].requires_grad_()
    leaves = [t.detach().requires_grad_() for t in tensors]
    grad = torch.randn(30, 10)
    got = torch.autograd.grad(ops.linear(*tensors), [tensors[index] for index in needs], grad)
    all_gradients = torch.autograd.grad(ops.linear(*leaves), leaves, grad)
    for index, gradient in zip(needs, got, strict=True):
        assert_close(gradient, all_gradients[index])


@pytest.mark.parametrize("shape", [(24,), (24, 5, 8)])
def test_other_layouts_and_shapes(shape):
    """x may have any strides and any number of dimensions; the weight is frozen."""
    _, weight, bias, _ = draw(1, 24, 9)
    x = torch.randn(shape).permute(*reversed(range(len(shape))))
    y = ops.linear(x, weight, bias.requires_grad_())
    assert_close(y.detach(), F.linear(rounded(x), rounded(weight), bias.detach().double()))
    assert torch.equal(torch.autograd.grad(y.sum(), bias)[0], torch.full((9,), float(y.numel() // 9)))


def test_derivatives_of_derivatives_are_pytorchs():
    x, weight, bias, grad = (t.requires_grad_() for t in draw(6, 5, 4))

    def penalty(linear) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(linear(x, weight, bias).tanh(), (x, weight, bias), grad, create_graph=True)
        return torch.autograd.grad(torch.cat([t.flatten() for t in first]).square().sum(), (x, weight, grad))

    for got, want in zip(penalty(ops.linear), penalty(F.linear), strict=True):
        assert_close(got, want, torch.bfloat16)


@pytest.mark.parametrize("units", NUMBERS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_reach_their_row_of_the_output(units, value):
    torch.ops.lightconv.cpu_bf16_units(units)
    x, weight, bias, _ = draw(40, 70, 30)
    x[33, 65] = value
    with torch.no_grad():
        y = ops.linear(x, weight, bias)
    assert not y[33].isfinite().any()
    assert y[torch.arange(40) != 33].isfinite().all()


def test_threads_change_nothing(set_threads):
    x, weight, bias, grad = draw(700, 130, 250)
    raw, results = torch.ops.lightconv, []
    for count in (1, 2, 3):
        set_threads(count)
        gradients = raw.bf16_linear_backward(grad, x, weight, True, True, True)
        results.append([raw.bf16_linear(x, weight, bias), *gradients])
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(results[0], result, strict=True))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (r"expected x \(\.\.\., in\)", (torch.zeros(2, 5), torch.zeros(3, 4), None)),
        (r"expected bias \(out,\)", (torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(4))),
        ("expected contiguous float32", (torch.zeros(2, 4), torch.zeros(4, 3).T, None)),
    ],
)
def test_operands_that_do_not_fit_are_refused(message, arguments):
    with pytest.raises(RuntimeError, match=message):
        torch.ops.lightconv.bf16_linear(*arguments)
