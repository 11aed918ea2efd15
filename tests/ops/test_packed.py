"""Linear layers with packed weights, in each precision and with each of the processor's units, against float64."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules.linear import apply_linear, packed_bytes, packed_weight, with_packed_weights
from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused.linear import BF16_UNITS, INT8_UNITS, SEVEN_BITS, lacking
from tests.ops.conftest import VECTOR_BITS, products_in
from tests.tolerances import assert_close

assert library.load() is None
RAW = torch.ops.lightconv
BITS, BF16, INT8 = RAW.cpu_vector_bits(0), RAW.cpu_bf16_units(-1), RAW.cpu_int8_units(-1)


def available() -> list[tuple[str, str]]:
    """Return precisions, each with the bits of vectors or the units that it is computed with."""
    settings = [("fp32", str(bits)) for bits in VECTOR_BITS]
    settings += [("bf16", units) for units in BF16_UNITS[1 : BF16 + 1]]
    for number in range(1, INT8 + 1):
        RAW.cpu_int8_units(number)
        if RAW.cpu_int8_units(-1) == number:
            settings.append(("int8", INT8_UNITS[number]))
    RAW.cpu_int8_units(INT8)
    return settings


UNITS = available()


def choose(precision: str, units: str) -> None:
    if precision == "fp32":
        RAW.cpu_vector_bits(int(units))
    elif precision == "bf16":
        RAW.cpu_bf16_units(BF16_UNITS.index(units))
    else:
        RAW.cpu_int8_units(INT8_UNITS.index(units))


@pytest.fixture(autouse=True)
def best() -> Iterator[None]:
    yield
    RAW.cpu_vector_bits(BITS)
    RAW.cpu_bf16_units(BF16)
    RAW.cpu_int8_units(INT8)


def draw(rows: int, width: int, out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, weight and bias; products are of the order of 1. One row of x and one of the weight are 0."""
    g = torch.Generator().manual_seed(rows + 7 * width + 11 * out)
    x, weight = torch.randn(rows, width, generator=g), torch.randn(out, width, generator=g) / width**0.5
    x[rows // 2], weight[out // 2] = 0, 0
    x[: rows // 3] += 2  # nearly all positive
    return x, weight, torch.randn(out, generator=g)


def rounded_weight(weight: Tensor) -> Tensor:
    """Round each row to integers of -127 to 127 times a scale."""
    largest = weight.abs().amax(dim=1, keepdim=True)
    per = (torch.full_like(largest, 127) / largest).nan_to_num(
        posinf=0
    )  # 127 / largest is a reciprocal times 127 in PyTorch
    return (weight * per).round().double() * (largest / 127)


def rounded_rows(x: Tensor, levels: int) -> Tensor:
    """Round each row to integers of 0 to ``levels``, less a zero point, times a scale."""
    low, high = x.amin(dim=1, keepdim=True).clamp(max=0), x.amax(dim=1, keepdim=True).clamp(min=0)
    scale = high / levels - low / levels
    per = (1 / scale).nan_to_num(posinf=0)
    zero = (-low * per + 0.5).floor()
    integers = (x.double() * per.double() + zero).round().clamp(0, levels)
    return (integers - zero) * scale.double()


def rounded(precision: str, units: str, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded operands of a product, in float64."""
    if precision == "fp32":
        return x.double(), weight.double()
    if precision == "bf16":
        return x.bfloat16().double(), weight.bfloat16().double()
    return rounded_rows(x, 127 if units in SEVEN_BITS else 255), rounded_weight(weight)


@pytest.mark.parametrize(("precision", "units"), UNITS)
@settings(max_examples=25)
@given(
    rows=st.integers(1, 70),
    width=st.integers(1, 140),
    out=st.integers(1, 140),
    bias=st.booleans(),
    relu=st.booleans(),
)
@example(rows=16, width=64, out=32, bias=True, relu=False)
@example(rows=1, width=1030, out=1100, bias=False, relu=True)
@example(rows=37, width=2080, out=530, bias=True, relu=True)
def test_products_are_those_of_the_rounded_operands(precision, units, rows, width, out, bias, relu):
    choose(precision, units)
    x, weight, shift = draw(rows, width, out)
    packed = RAW.pack_weight(weight, precision)
    got = RAW.packed_linear(x, packed, shift if bias else None, out, relu)
    expected = F.linear(*rounded(precision, units, x, weight), shift.double() if bias else None)
    # the rounding error grows with the square root of the number of terms
    assert_close(got / (1 + width) ** 0.5, (expected.relu() if relu else expected) / (1 + width) ** 0.5)


@pytest.mark.parametrize(("precision", "units"), UNITS)
def test_the_largest_integers_do_not_overflow(precision, units):
    """Some units sum pairs of products of 7- or 8-bit integers in 16 bits."""
    choose(precision, units)
    x, weight = torch.ones(3, 4000), torch.ones(20, 4000)
    x[:, 1::2], weight[:, 1::2] = 0, -1
    packed = RAW.pack_weight(weight, precision)
    assert_close(RAW.packed_linear(x, packed, None, 20, False), torch.full((3, 20), 2000.0))
    assert_close(RAW.packed_linear(-x, packed, None, 20, False), torch.full((3, 20), -2000.0))


@pytest.mark.parametrize(("precision", "units"), UNITS)
def test_a_row_does_not_depend_on_the_others(precision, units, set_threads):
    """Nor does it depend on the number of threads."""
    choose(precision, units)
    x, weight, bias = draw(70, 100, 90)
    packed = RAW.pack_weight(weight, precision)
    product = RAW.packed_linear(x, packed, bias, 90, False)
    for first, last in ((0, 1), (3, 8), (10, 43)):
        assert torch.equal(RAW.packed_linear(x[first:last], packed, bias, 90, False), product[first:last])
    for count in (1, 3):
        set_threads(count)
        assert torch.equal(RAW.packed_linear(x, packed, bias, 90, False), product)
        assert torch.equal(RAW.pack_weight(weight, precision).view(torch.uint8), packed.view(torch.uint8))


@pytest.mark.parametrize(("precision", "units"), UNITS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_reach_the_output(precision, units, value):
    choose(precision, units)
    x, weight, bias = draw(40, 70, 30)
    x[33, 65] = value
    y = RAW.packed_linear(x, RAW.pack_weight(weight, precision), bias, 30, False)
    is_zero = weight.abs().sum(dim=1) == 0
    assert not y[33, ~is_zero].isfinite().any()
    assert y[torch.arange(40) != 33].isfinite().all()
    weight[7, 3], x[33, 65] = value, 1.0
    y = RAW.packed_linear(x, RAW.pack_weight(weight, precision), bias, 30, False)
    assert not y[1, 7].isfinite()
    assert y[:, torch.arange(30) != 7].isfinite().all()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@torch.no_grad()
def test_packed_weights_are_those_of_a_copy(precision):
    with products_in(precision):
        layer, x = nn.Linear(40, 20), torch.randn(3, 40)
        copied = with_packed_weights(nn.Sequential(layer, nn.ReLU()))
    assert packed_weight(layer) is None
    assert copied[0].weight is layer.weight
    assert copied[0].state_dict().keys() == {"weight", "bias"}
    packed = packed_weight(copied[0])
    assert packed is not None
    assert packed_bytes(copied) == packed.nbytes > 0
    assert copied[0](x).equal(layer(x)), "called as a module, the copy is PyTorch's own"
    units = {"fp32": "", "bf16": ops.bf16_units(), "int8": ops.int8_units()}[precision]
    expected = F.linear(*rounded(precision, units, x, layer.weight), layer.bias.double())
    assert_close(apply_linear(copied[0], x), expected)
    assert_close(apply_linear(copied[0], x, F.relu), expected.relu())
    layer.weight.data.neg_()
    assert_close(apply_linear(copied[0], x), expected)
    assert_close(apply_linear(layer, x), F.linear(x.double(), layer.weight.double(), layer.bias.double()))


def test_with_gradients_the_unpacked_weight_is_used():
    layer, x = nn.Linear(6, 4), torch.randn(3, 6)
    copied = with_packed_weights(layer)
    y = apply_linear(copied, x)
    assert_close(y.detach(), layer(x).detach())
    assert y.requires_grad


PACKED = torch.zeros(1, 4, 16)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("pack_weight", (torch.zeros(3), "fp32"), r"expected weight \(out, in\)"),
        ("pack_weight", (torch.zeros(3, 0), "fp32"), r"expected weight \(out, in\)"),
        ("pack_weight", (torch.zeros(4, 3).T, "fp32"), "expected contiguous float32"),
        ("pack_weight", (torch.zeros(3, 4), "fp8"), "expected the precision fp32, bf16 or int8; got fp8"),
        ("pack_weight", (torch.zeros(1, 65537), "int8"), "at most 65536 inputs; got 65537"),
        ("packed_linear", (torch.zeros(2, 5), PACKED, None, 3, False), r"not that of a weight \(3, 5\)"),
        ("packed_linear", (torch.zeros(2, 4), PACKED.bfloat16(), None, 3, False), r"not that of a weight \(3, 4\)"),
        ("packed_linear", (torch.zeros(2, 4), PACKED.char(), None, 3, False), r"not that of a weight \(3, 4\)"),
        ("packed_linear", (torch.zeros(2, 4), PACKED, torch.zeros(4), 3, False), r"expected x .*, and bias \(out,\)"),
        ("packed_linear", (torch.zeros(2, 4).double(), PACKED, None, 3, False), "expected contiguous float32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        getattr(RAW, name)(*arguments)


SHOW = """
import os, sys, torch
for environment, precision in eval(sys.argv[1]):
    if os.fork() == 0:
        os.environ.update(environment)
        try:
            from lightconv_plugin import ops
            torch.set_float32_matmul_precision(precision)
            print(ops.bf16_units(), ops.int8_units(), ops.pack_weight(torch.ones(2, 2)).dtype, flush=True)
        except ValueError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
    print("----", flush=True)
"""
ASK = "from lightconv_plugin import ops; print(ops.bf16_units(), ops.int8_units())"


def environments(bf16: str, int8: str) -> list[tuple[dict[str, str], str, str, str]]:
    """Return environments, settings of PyTorch, what is printed, and the warning.

    Args:
        bf16, int8: the units that the present environment allows.
    """
    units, product, avx2 = f"{bf16} {int8}", "torch.float32" if bf16 == "none" else "torch.bfloat16", "avx2"
    with_int8 = [
        ({"LIGHTCONV_MATMUL": "int8"}, "highest", f"{units} torch.int8\n", ""),
        ({"LIGHTCONV_MATMUL": "int8"}, "medium", f"{units} torch.int8\n", ""),
        ({"LIGHTCONV_MATMUL": "int8", "ONEDNN_MAX_CPU_ISA": "AVX2"}, "highest", "none AVX2 torch.int8\n", ""),
    ]
    return [
        ({"LIGHTCONV_MATMUL": "bf16"}, "highest", f"{units} {product}\n", "no units" if bf16 == "none" else ""),
        (
            {"LIGHTCONV_MATMUL": "bf16", "ATEN_CPU_CAPABILITY": avx2},
            "highest",
            "torch.float32\n",
            "no units for bf16 that may be used",
        ),
        ({"LIGHTCONV_MATMUL": "fp32"}, "highest", f"{units} torch.float32\n", ""),
        ({}, "medium", f"{units} {product}\n", ""),
        ({"LIGHTCONV_MATMUL": "fp8"}, "highest", "", "$LIGHTCONV_MATMUL: the precision of products is 'fp8'"),
        *(with_int8 if int8 != "none" else []),
        ({"LIGHTCONV_MATMUL": "int8", "ATEN_CPU_CAPABILITY": "default"}, "highest", "", "cannot be int8, since this"),
    ]


def test_settings_in_the_environment():
    """Each is tried in a fork of a process that has imported only torch."""
    units = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout.split()
    bf16, int8 = units
    expected = environments(bf16, int8)
    show = [sys.executable, "-c", SHOW, repr([setting[:2] for setting in expected])]
    process = subprocess.run(show, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for (*_, printed, warned), lines in zip(expected, process.stdout.split("----\n")[:-1], strict=True):
        assert printed in lines
        assert warned in lines if warned else lines == printed


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_processor_without_units_is_reported(precision, monkeypatch, caplog):
    monkeypatch.setattr(RAW, f"cpu_{precision}_units", lambda most: 0)
    assert "no units" in str(lacking(precision))
    if precision == "int8":
        with pytest.raises(ValueError, match=r"cannot be int8, since this processor has no units .*; take fp32"):
            ops.set_precision(precision)
        return
    ops.set_precision(precision)
    assert "computed in float32, since this processor has no units" in caplog.text
    assert ops.precision_of_products() == "fp32"
