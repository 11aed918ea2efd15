"""Linear maps, and the type that their products are computed in on a processor.

With $LIGHTCONV_MATMUL=bf16, or after ``set_precision("bf16")``, the operands of a linear map's product are rounded to
bfloat16, and the library computes it with AMX or AVX512-BF16. Its sums stay in float32, as do parameters, gradients
and activations. PyTorch's switch, ``torch.set_float32_matmul_precision("medium")``, asks for the same. It also has
PyTorch's own products computed so, by oneDNN, which prepares itself anew for every new shape.
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
UNITS = ("none", "AVX512-BF16", "AMX")


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None, *, relu: bool = False
) -> Tensor:
    """x weight^T + bias: x (..., in), weight (out, in), bias (out,) give (..., out).

    For few rows the product takes no longer than reading the weights once, where a decoding step spends its time.

    Args:
        packed: ``pack_weight(weight)``, where weight has not changed since. Read instead of weight.
        relu: what is negative becomes 0; on a GPU within the product, where no gradients are recorded.
    """
    if relu:
        elsewhere = torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda")
        if x.is_cuda and bias is not None and not (elsewhere or recorded(x, weight, bias)):
            rows = torch_private.linear_relu(x.reshape(-1, weight.shape[1]), weight, bias)
            return rows.view(*x.shape[:-1], len(weight))
        return F.relu(linear(x, weight, bias, packed))
    if packed is None and takes("few_rows_linear", x, weight, bias):
        return torch.ops.lightconv.few_rows_linear(x, weight, bias)
    if takes("bf16_linear", x, weight, bias):
        if recorded(x, weight, bias):
            return _Bf16Linear.apply(x, weight, bias)
        return torch.ops.lightconv.bf16_linear(x, weight, bias, packed)
    return F.linear(x, weight, bias)


class _Bf16Linear(Function):
    """Rounds the operands of its three products; its further derivatives are PyTorch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return torch.ops.lightconv.bf16_linear(x, weight, bias, None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        need_x, need_weight, need_bias = need = ctx.needs_input_grad
        if recorded(grad, x, weight):
            return tuple(gradients_of(F.linear, (x, weight, bias), need, grad))
        together = need_weight and need_bias
        operator = torch.ops.lightconv.bf16_linear_backward
        of_x, of_weight, of_bias = operator(grad, x, weight, need_x, need_weight, together)
        if need_bias and not together:
            of_bias = grad.sum_to_size(bias.shape)
        return of_x if need_x else None, of_weight if need_weight else None, of_bias if need_bias else None


def pack_weight(weight: Tensor) -> Tensor | None:
    """weight (out, in) in bfloat16, in the order in which products read it; None where they are computed in float32."""
    weight = weight.detach()
    return torch.ops.lightconv.bf16_pack(weight) if takes("bf16_pack", weight, weight) else None


def bf16_units() -> str:
    """The processor's units for products in bfloat16: one of ``UNITS``. $ATEN_CPU_CAPABILITY can forbid them."""
    if library.load() is not None:
        return UNITS[0]
    return UNITS[torch.ops.lightconv.cpu_bf16_units(-1)]


def lacking() -> str | None:
    """Return the reason why there are no products in bfloat16; None where there are."""
    if bf16_units() != UNITS[0]:
        return None
    return library.load() or "this processor has no units for it that may be used (AMX or AVX512-BF16)"


def slower() -> str | None:
    """Return the reason why products in bfloat16 are not to be preferred on this processor; None where they are.

    AMX and AMD's units are faster than float32. An Intel processor that has AVX512-BF16 without AMX took 1.8 times as
    long with it (768 to 2,048 rows, one thread).
    """
    if reason := lacking():
        return reason
    if bf16_units() == "AMX" or "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return None
    return "this processor multiplies faster in float32 than in its AVX512-BF16 units"


def set_precision(chosen: str) -> None:
    """Compute the products of linear maps on processors in "bf16" or "fp32".

    Where the processor has no units for bfloat16, a warning says so, and it is fp32.

    Raises:
        ValueError: another word.
    """
    if chosen not in ("bf16", "fp32"):
        raise ValueError(f"the precision of products is {chosen!r}; expected bf16 or fp32")
    if chosen == "bf16" and (reason := lacking()):
        logger.warning(
            "lightconv_plugin: products are to be in bfloat16, and are computed in float32, since %s", reason
        )
        chosen = "fp32"
    backend.products_in_bf16 = chosen == "bf16"


if asked := os.environ.get(VARIABLE):
    try:
        set_precision(asked)
    except ValueError as error:
        raise ValueError(f"${VARIABLE}: {error}") from None
