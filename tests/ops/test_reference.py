import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.normalization import NORMALIZATIONS
from tests.ops.equation import convolve
from tests.tolerances import assert_close


def tensors(time, batch, heads, ratio, width, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(time, batch, heads * ratio, generator=g, dtype=torch.float64).to(dtype)
    light = torch.randn(heads, width, generator=g, dtype=torch.float64).to(dtype)
    dynamic = torch.randn(time, batch, heads, width, generator=g, dtype=torch.float64).to(dtype)
    return x, light, dynamic


@settings(max_examples=40)
@given(
    time=st.sampled_from([1, 2, 5, 9, 40]),
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    ratio=st.integers(1, 3),
    width=st.integers(1, 8),
    data=st.data(),
)
def test_both_operators_equal_the_equation(time, batch, heads, ratio, width, data):
    padding_l = data.draw(st.integers(0, width - 1))
    x, light, dynamic = tensors(time, batch, heads, ratio, width)
    assert_close(reference.dynamic_conv(x, dynamic, padding_l=padding_l), convolve(x, dynamic, padding_l))
    assert_close(
        reference.light_conv(x, light, padding_l=padding_l),
        convolve(x, light.expand(time, batch, heads, width), padding_l),
    )


def test_non_contiguous_inputs():
    x, light, dynamic = tensors(11, 3, 2, 4, 5)
    apart = x.transpose(0, 1).contiguous().transpose(0, 1)
    for call, weight in ((reference.light_conv, light), (reference.dynamic_conv, dynamic)):
        strided = torch.stack([weight, weight], dim=-1)[..., 0]
        assert not any(t.is_contiguous() for t in (apart, strided))
        assert torch.equal(call(apart, strided, padding_l=2), call(x, weight, padding_l=2))


@pytest.mark.parametrize("name", ["light_conv", "dynamic_conv"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_values_reach_the_positions_that_the_kernel_covers(bad, name):
    """They reach these and no others, as an input and as a gradient."""
    time, width, padding_l, at, call = 300, 7, 2, 131, getattr(reference, name)
    x, light, dynamic = tensors(time, 2, 2, 2, width)
    weight = light if name == "light_conv" else dynamic
    x[at, 1, 3] = bad
    out = call(x, weight, padding_l=padding_l)
    expected = torch.zeros_like(out, dtype=torch.bool)
    expected[at + padding_l - width + 1 : at + padding_l + 1, 1, 3] = True
    assert torch.equal(~out.isfinite(), expected)
    assert torch.equal(out[expected].isnan(), torch.full((width,), math.isnan(bad)))
    finite = torch.randn_like(x).requires_grad_()
    (grad,) = torch.autograd.grad(call(finite, weight, padding_l=padding_l), finite, x)
    reached = torch.zeros_like(expected)
    reached[at - padding_l : at - padding_l + width, 1, 3] = True
    assert torch.equal(~grad.isfinite(), reached)


def test_a_causal_kernel_longer_than_the_sequence_shares_its_softmax_with_the_padding():
    """One position, three equal logits: a third of the input stays, the other weights fall on the padding."""
    x = torch.full((1, 1, 1), 6.0, dtype=torch.float64)
    assert reference.dynamic_conv(x, torch.zeros(1, 1, 1, 3).double(), padding_l=2).item() == pytest.approx(2.0)
    assert reference.conv_step(x, torch.zeros(1, 3).double()).item() == pytest.approx(2.0)


@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_one_step_equals_the_full_sequence_at_every_position(width):
    x, light, dynamic = tensors(7, 3, 2, 3, width)
    full_light = reference.light_conv(x, light, padding_l=width - 1)
    full_dynamic = reference.dynamic_conv(x, dynamic, padding_l=width - 1)
    for i in range(7):
        window = x[max(0, i - width + 1) : i + 1]
        assert_close(reference.conv_step(window, light), full_light[i : i + 1])
        assert_close(reference.conv_step(window, dynamic[i : i + 1]), full_dynamic[i : i + 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_reduced_precision(dtype):
    x, light, dynamic = tensors(20, 2, 2, 4, 31, dtype)
    got = reference.dynamic_conv(x, dynamic, padding_l=30), reference.light_conv(x, light, padding_l=15)
    kernels = dynamic.double(), light.double().expand(20, 2, 2, 31)
    for out, kernel, padding_l in zip(got, kernels, (30, 15), strict=True):
        assert out.dtype == dtype
        assert_close(out, convolve(x.double(), kernel, padding_l))


def test_sixteen_bit_logits_are_normalised_in_float32():
    logits = torch.tensor([[12.0, 11.9, -3.0]], dtype=torch.bfloat16)
    kernel = reference.normalize_kernel(logits)
    assert kernel.dtype == torch.float32
    assert_close(kernel, torch.softmax(logits.double(), dim=-1), torch.float32)


@pytest.mark.parametrize("operator", ["light", "dynamic"])
def test_dropconnect_drops_normalised_weights_at_each_position_and_rescales(operator):
    """A constant input of 1 makes each output the sum of the kernel's surviving weights."""
    torch.manual_seed(0)
    time, batch, heads, width, p = 400, 3, 2, 4, 0.25
    x = torch.ones(time, batch, heads).double()
    weight = torch.zeros(*((heads,) if operator == "light" else (time, batch, heads)), width).double()
    out = getattr(reference, f"{operator}_conv")(x, weight, padding_l=0, dropconnect=p)
    inner = out[: time - width]
    survivors = inner * width * (1 - p)  # how many of the weights, each 1/width, survived
    assert_close(survivors, survivors.round())
    assert set(survivors.round().flatten().int().tolist()) == {0, 1, 2, 3, 4}
    assert inner.mean().item() == pytest.approx(1.0, abs=0.05)
    assert inner[:, 0].std() > 0.1, "all positions share one mask"
    assert not torch.equal(inner[:, 0], inner[:, 1]), "all sentences share one mask"
    assert not torch.equal(inner[..., 0], inner[..., 1]), "all heads share one mask"


TABLE_6 = {
    "none": lambda w, k: w[k],
    "softmax": lambda w, k: math.exp(w[k]) / sum(map(math.exp, w)),
    "sigmoid": lambda w, k: 1 / (1 + math.exp(-w[k])),
    "tanh": lambda w, k: math.tanh(w[k]),
    "l1": lambda w, k: w[k] / (sum(map(abs, w)) + 1e-6),
    "l2": lambda w, k: w[k] / (math.sqrt(sum(v * v for v in w)) + 1e-6),
    "power": lambda w, k: w[k] ** 2,
    "abs": lambda w, k: abs(w[k]),
    "abs_l1": lambda w, k: abs(w[k]) / (sum(map(abs, w)) + 1e-6),
    "abs_l2": lambda w, k: abs(w[k]) / (math.sqrt(sum(v * v for v in w)) + 1e-6),
}


@pytest.mark.parametrize("name", sorted({*NORMALIZATIONS, *TABLE_6}))
def test_normalisations_of_table_6(name):
    """The input has a single 1, so that each output of an operator is one weight."""
    weights = [0.3, -1.2, 2.0]
    logits = torch.tensor(weights, dtype=torch.float64)
    x = torch.zeros(5, 1, 1, dtype=torch.float64)
    x[2] = 1.0
    expected = torch.zeros(5, 1, 1, dtype=torch.float64)
    for k in range(3):
        expected[2 - k + 1] = TABLE_6[name](weights, k)
    options = {"padding_l": 1, "normalization": name}
    assert_close(reference.light_conv(x, logits.view(1, 3), **options), expected)
    assert_close(reference.dynamic_conv(x, logits.expand(5, 1, 1, 3), **options), expected)
