"""Linear layers, and the precision of their matrix products on a CPU.

$LIGHTCONV_MATMUL or ``set_precision`` chooses one of three precisions:

* fp32, the default.
* bf16: the operands of every product are rounded to bfloat16, and the library computes it with AMX or AVX512-BF16. Sums
  stay in float32, as do parameters, gradients and activations. PyTorch's switch,
  ``torch.set_float32_matmul_precision("medium")``, has the same effect here. It also changes PyTorch's own products,
  which oneDNN computes after some preparation for every new shape.
* int8: weights are rounded to 8-bit integers with one scale per output. Activations are rounded to 8 bits (7 on
  processors without VNNI) with a scale and a zero point per row, so a sentence's result does not depend on the rest of
  its batch. Sums are exact, in 32-bit integers. Only weights that a search has packed (``pack_weight``) use it; all
  other products, and training, are in fp32.
"""

import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from lightconv_plugin.ops import backend, library, torch_private
from lightconv_plugin.ops.autograd import gradients_of, recorded
from lightconv_plugin.ops.backend import takes

logger = logging.getLogger(__name__)

VARIABLE = "LIGHTCONV_MATMUL"
PRECISIONS = ("fp32", "bf16", "int8")
BF16_UNITS = ("none", "AVX512-BF16", "AMX")
INT8_UNITS = ("none", "AVX2", "AVX-512", "AVX-VNNI", "AVX512-VNNI", "AMX")
SEVEN_BITS = ("AVX2", "AVX-512")  # units for which int8 rounds activations to 7 bits instead of 8


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None, *, relu: bool = False
) -> Tensor:
    """Return x weight^T + bias: x (..., in), weight (out, in), bias (out,) give (..., out).

    For few rows, as in a step of decoding, the library's product takes as long as reading the weights once.

    Args:
        packed: the result of ``pack_weight`` for the present values of weight, which is then read instead of weight; or
            None.
        relu: also set negative results to 0. The product's kernel does this if the weight is packed, and on a GPU if no
            gradients are recorded.
    """
    if packed is not None and takes("packed_linear", x, weight, bias):
        return torch.ops.lightconv.packed_linear(x, packed, bias, len(weight), relu)
    if relu:
        is_changed = torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda")  # PyTorch compiles or casts
        if x.is_cuda and bias is not None and not (is_changed or recorded(x, weight, bias)):
            rows = torch_private.linear_relu(x.reshape(-1, weight.shape[1]), weight, bias)
            return rows.view(*x.shape[:-1], len(weight))
        return F.relu(linear(x, weight, bias))
    if takes("few_rows_linear", x, weight, bias):
        return torch.ops.lightconv.few_rows_linear(x, weight, bias)
    if takes("bf16_linear", x, weight, bias):
        if recorded(x, weight, bias):
            return _Bf16Linear.apply(x, weight, bias)
        return torch.ops.lightconv.bf16_linear(x, weight, bias)
    return F.linear(x, weight, bias)


class _Bf16Linear(Function):
    """Linear layer that rounds the operands of its three products. PyTorch computes higher derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return torch.ops.lightconv.bf16_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        need_x, need_weight, need_bias = need = ctx.needs_input_grad
        if recorded(grad, x, weight):
            return tuple(gradients_of(F.linear, (x, weight, bias), need, grad))
        need_both = need_weight and need_bias  # the operator computes the bias' gradient along with the weight's
        operator = torch.ops.lightconv.bf16_linear_backward
        grad_x, grad_weight, grad_bias = operator(grad, x, weight, need_x, need_weight, need_both)
        if need_bias and not need_both:
            grad_bias = grad.sum_to_size(bias.shape)
        return grad_x if need_x else None, grad_weight if need_weight else None, grad_bias if need_bias else None


def pack_weight(weight: Tensor) -> Tensor | None:
    """Return weight (out, in) in the memory order and the precision of the library's products.

    Return None if the library does not support it; it supports float32 on a CPU.
    """
    weight = weight.detach()
    if not takes("pack_weight", weight, weight):
        return None
    return torch.ops.lightconv.pack_weight(weight, backend.precision_of_products())


def bf16_units() -> str:
    """Return the processor's units for products in bfloat16, one of ``BF16_UNITS``.

    $ATEN_CPU_CAPABILITY and $ONEDNN_MAX_CPU_ISA can forbid them.
    """
    return BF16_UNITS[torch.ops.lightconv.cpu_bf16_units(-1)] if library.load() is None else BF16_UNITS[0]


def int8_units() -> str:
    """Return the processor's units for products of 8-bit integers, one of ``INT8_UNITS``; see ``bf16_units``."""
    return INT8_UNITS[torch.ops.lightconv.cpu_int8_units(-1)] if library.load() is None else INT8_UNITS[0]


def lacking(precision: str) -> str | None:
    """Return the reason why this machine cannot compute products in a precision, or None."""
    if precision == "fp32":
        return None
    if reason := library.load():
        return reason
    units, needed = (bf16_units(), "AMX or AVX512-BF16") if precision == "bf16" else (int8_units(), "AVX2 or better")
    return f"this processor has no units for {precision} that may be used ({needed})" if units == "none" else None


def slower() -> str | None:
    """Return the reason why products in bfloat16 are slower than in float32 on this processor, or None.

    AMX and AMD's units are faster than float32. An Intel processor that has AVX512-BF16 without AMX took 1.8 times as
    long with it (768 to 2,048 rows, one thread).
    """
    if reason := lacking("bf16"):
        return reason
    if bf16_units() == "AMX" or "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return None
    return "this processor multiplies faster in float32 than in its AVX512-BF16 units"


def set_precision(chosen: str) -> None:
    """Choose the precision of linear layers' products on a CPU, one of ``PRECISIONS``.

    If the processor has no units for bfloat16, a warning is logged, and fp32, which is more precise, is used. int8,
    which saves memory and time, is not replaced.

    Raises:
        ValueError: an unknown precision, or int8 where the processor or the library does not support it.
    """
    if chosen not in PRECISIONS:
        raise ValueError(f"the precision of products is {chosen!r}; expected one of: {', '.join(PRECISIONS)}")
    if reason := lacking(chosen):
        if chosen == "int8":
            raise ValueError(f"the precision of products cannot be int8, since {reason}; take fp32")
        logger.warning(
            "lightconv_plugin: bfloat16 was chosen for products, but they are computed in float32, since %s", reason
        )
        chosen = "fp32"
    backend.products = chosen


if asked := os.environ.get(VARIABLE):
    try:
        set_precision(asked)
    except ValueError as error:
        raise ValueError(f"${VARIABLE}: {error}") from None
