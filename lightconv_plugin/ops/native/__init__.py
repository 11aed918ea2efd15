"""The operators in C++ and CUDA C++, behind the same functions as ``reference``; forward and backward.

What this backend cannot do is said by ``unsupported_reason``; calling it all the same raises that sentence.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.ops.native import autograd
from lightconv_plugin.ops.native.operators import CPU_TYPES, has_kernel, unsupported_reason
from lightconv_plugin.ops.normalization import prepare_kernel

__all__ = ["CPU_TYPES", "dynamic_conv", "has_kernel", "light_conv", "unsupported_reason"]


def require(operator: str, x: Tensor, *others: Tensor | None) -> None:
    """Raise what ``unsupported_reason`` says.

    Raises:
        ValueError: the library does not take the call.
    """
    refused = unsupported_reason(operator, x, *others)
    if refused is not None:
        raise ValueError(f"the native backend cannot run {operator}: {refused.reason}")


def _conv(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    offsets: Tensor | None = None,
) -> Tensor:
    """See the functions of ``reference`` of the same names; the same shapes. On a CPU also packed sentences (T, 1, C).

    Raises:
        ValueError: what ``unsupported_reason`` says, or an unknown normalisation.
    """
    require(name, x, weight)
    if name == "dynamic_conv" and torch.promote_types(x.dtype, weight.dtype) != x.dtype:
        # rounded to x's type, the gradients of kernels would not cancel in the normalisation's derivative
        x, dtype = x.to(weight.dtype), x.dtype
        options: dict[str, Any] = {"padding_l": padding_l, "normalization": normalization, "dropconnect": dropconnect}
        return _conv(name, x, weight, **options, offsets=offsets).to(dtype)
    weight, softmax = prepare_kernel(weight, normalization, x.dtype, cast=False)
    # drawn on x's device, so that a captured CUDA graph draws anew at every replay
    seed = torch.randint(2**62, (1,), device=x.device) if dropconnect > 0.0 else None
    return autograd.conv(name, x, weight, padding_l, softmax, dropconnect, seed, offsets)


light_conv = functools.partial(_conv, "light_conv")
dynamic_conv = functools.partial(_conv, "dynamic_conv")
