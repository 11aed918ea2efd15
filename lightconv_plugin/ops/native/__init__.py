"""The operators in C++ and CUDA C++, behind the same functions as ``reference``; forward and backward.

What this backend cannot do is said by ``unsupported_reason``; calling it all the same raises that sentence.
"""

from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.ops.native import autograd
from lightconv_plugin.ops.native.operators import CPU_TYPES, has_kernel, unsupported_reason
from lightconv_plugin.ops.normalization import prepare_kernel

__all__ = [
    "CPU_TYPES",
    "dropout",
    "dynamic_conv",
    "glu_mask",
    "has_kernel",
    "light_conv",
    "smoothed_nll",
    "unsupported_reason",
]


def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, normalization: str = "softmax", dropconnect: float = 0.0
) -> Tensor:
    """See ``reference.light_conv``; the same shapes.

    Raises:
        ValueError: what ``unsupported_reason`` says, or an unknown normalisation.
    """
    return _conv("light_conv", x, weight, padding_l, normalization, dropconnect)


def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, normalization: str = "softmax", dropconnect: float = 0.0
) -> Tensor:
    """See ``reference.dynamic_conv``; the same shapes.

    Raises:
        ValueError: what ``unsupported_reason`` says, or an unknown normalisation.
    """
    return _conv("dynamic_conv", x, weight, padding_l, normalization, dropconnect)


def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """See ``reference.glu_mask``; the same shapes, on a GPU.

    Raises:
        ValueError: what ``unsupported_reason`` says.
    """
    require("glu_mask", x)
    return autograd.glu_mask(x, padding_mask)


def dropout(x: Tensor, p: float) -> Tensor:
    """See ``ops.dropout``; on a CPU."""
    return autograd.dropout(x, p, torch.randint(2**62, (1,)))


def smoothed_nll(logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """See ``ops.smoothed_nll``. The first result has a gradient.

    With s bytes a logit, forward and backward together move 3 * N * V * s bytes of a GPU's memory. A target outside
    0..V-1 is an error on a CPU. On a GPU it gives NaN, since an error would have to wait for the device.
    """
    return _SmoothedNll.apply(logits, target, smoothing, ignore)


def require(operator: str, x: Tensor, *others: Tensor | None) -> None:
    """Raise what ``unsupported_reason`` says.

    Raises:
        ValueError: the library does not take the call.
    """
    refused = unsupported_reason(operator, x, *others)
    if refused is not None:
        raise ValueError(f"the native backend cannot run {operator}: {refused.reason}")


def _conv(name: str, x: Tensor, weight: Tensor, padding_l: int, normalization: str, dropconnect: float) -> Tensor:
    require(name, x, weight)
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    # drawn on x's device, so that a captured CUDA graph draws anew at every replay
    seed = torch.randint(2**62, (1,), device=x.device) if dropconnect > 0.0 else None
    return autograd.conv(name, x, weight, padding_l, softmax, dropconnect, seed)


class _SmoothedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
        sums, log_sums = torch.ops.lightconv.smoothed_nll(logits, target, ignore)
        share = smoothing / (logits.shape[1] - 1)
        ctx.save_for_backward(logits, target, log_sums)
        ctx.shares, ctx.ignore = (1 - smoothing - share, share), ignore
        nll, everything = sums.to(torch.promote_types(logits.dtype, torch.float32))
        ctx.mark_non_differentiable(nll)
        return ctx.shares[0] * nll + ctx.shares[1] * everything, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _grad_nll: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, log_sums = ctx.saved_tensors
        if autograd.recorded(grad, logits):
            return autograd.smoothed_nll_gradient(grad, logits, target, ctx.shares, ctx.ignore), None, None, None
        operator = torch.ops.lightconv.smoothed_nll_backward
        return operator(grad, logits, target, log_sums, *ctx.shares, ctx.ignore), None, None, None
