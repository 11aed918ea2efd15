"""Linear maps, and the type that their products are computed in on a processor.

With $LIGHTCONV_MATMUL=bf16, or after ``set_precision("bf16")``, the operands of a linear map's product are rounded to
bfloat16, and the library computes it with AMX or AVX512-BF16. Its sums stay in float32, as do parameters, gradients
and activations. PyTorch's switch, ``torch.set_float32_matmul_precision("medium")``, asks for the same. It also has
PyTorch's own products computed so, by oneDNN, which prepares itself anew for every new shape.
"""

import logging
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv_plugin.ops.auxiliary import autograd
from lightconv_plugin.ops.dispatch import takes
from lightconv_plugin.ops.native import library, operators
from lightconv_plugin.ops.native.autograd import recorded

logger = logging.getLogger(__name__)

VARIABLE = "LIGHTCONV_MATMUL"
UNITS = ("none", "AVX512-BF16", "AMX")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x (..., in), weight (out, in), bias (out,) give (..., out).

    For few rows the product takes no longer than reading the weights once, where a decoding step spends its time.

    Args:
        packed: ``pack_weight(weight)``, where weight has not changed since. Read instead of weight.
    """
    if bias is not None and recorded(bias) and takes("column_sums", x, weight, bias):
        return autograd.linear(x, weight, bias)
    if packed is None and takes("few_rows_linear", x, weight, bias):
        return torch.ops.lightconv.few_rows_linear(x, weight, bias)
    if takes("bf16_linear", x, weight, bias):
        return autograd.bf16_linear(x, weight, bias, packed)
    return F.linear(x, weight, bias)


def pack_weight(weight: Tensor) -> Tensor | None:
    """weight (out, in) in bfloat16, in the order in which products read it; None where they are computed in float32."""
    weight = weight.detach()
    return torch.ops.lightconv.bf16_pack(weight) if takes("bf16_pack", weight, weight) else None


def bf16_units() -> str:
    """The processor's units for products in bfloat16: one of ``UNITS``.

    $ONEDNN_MAX_CPU_ISA and $ATEN_CPU_CAPABILITY can forbid them.
    """
    if library.load() is not None:
        return UNITS[0]
    return UNITS[torch.ops.lightconv.cpu_bf16_units(-1)]


def lacking() -> str | None:
    """Return the reason why there are no products in bfloat16; None where there are."""
    if bf16_units() != UNITS[0]:
        return None
    variables = {"ONEDNN_MAX_CPU_ISA": library.isa_limit(), "ATEN_CPU_CAPABILITY": library.vector_limit()}
    limited = "".join(f"; {name} is {value}" for name, value in variables.items() if value)
    return library.load() or f"this processor has no units for it that may be used (AMX or AVX512-BF16{limited})"


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
    operators.products_in_bf16 = chosen == "bf16"


if os.environ.get(VARIABLE):
    set_precision(os.environ[VARIABLE])
