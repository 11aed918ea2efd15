"""The operators in C++ and CUDA C++, behind the same functions as ``reference``; forward and backward.

What this backend cannot do is said by ``refusal``; calling it all the same raises that sentence.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightconv_plugin.ops.native.operators import CPU_TYPES, has_kernel, refusal
from lightconv_plugin.ops.normalization import prepare_kernel

__all__ = ["CPU_TYPES", "dropout", "dynamic_conv", "glu_mask", "has_kernel", "light_conv", "refusal", "smoothed_nll"]


def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, normalization: str = "softmax", dropconnect: float = 0.0
) -> Tensor:
    """See ``reference.light_conv``; the same shapes. Gradients are of first order.

    Raises:
        ValueError: what ``refusal`` says, or an unknown normalisation.
    """
    return _conv("light_conv", x, weight, padding_l, normalization, dropconnect)


def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, normalization: str = "softmax", dropconnect: float = 0.0
) -> Tensor:
    """See ``reference.dynamic_conv``; the same shapes. Gradients are of first order.

    Raises:
        ValueError: what ``refusal`` says, or an unknown normalisation.
    """
    return _conv("dynamic_conv", x, weight, padding_l, normalization, dropconnect)


def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """See ``reference.glu_mask``; the same shapes, on a GPU. Gradients are of first order.

    Raises:
        ValueError: what ``refusal`` says.
    """
    require("glu_mask", x)
    if torch.is_grad_enabled() and x.requires_grad:
        return _GluMask.apply(x, padding_mask)
    return torch.ops.lightconv.glu_mask(x, padding_mask)


def dropout(x: Tensor, p: float) -> Tensor:
    """See ``ops.dropout``; on a CPU. Gradients are of first order."""
    seed = torch.randint(2**62, (1,))
    if torch.is_grad_enabled() and x.requires_grad:
        return _Dropout.apply(x, p, seed)
    return torch.ops.lightconv.dropout(x, p, seed)


def smoothed_nll(logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """See ``ops.smoothed_nll``. The first result has a gradient, of first order.

    With s bytes a logit, forward and backward together move 3 * N * V * s bytes of a GPU's memory. A target outside
    0..V-1 is an error on a CPU. On a GPU it gives NaN, since an error would have to wait for the device.
    """
    return _SmoothedNll.apply(logits, target, smoothing, ignore)


def require(operator: str, x: Tensor, *others: Tensor | None) -> None:
    """Raise what ``refusal`` says.

    Raises:
        ValueError: the library does not take the call.
    """
    refused = refusal(operator, x, *others)
    if refused is not None:
        raise ValueError(f"the native backend cannot run {operator}: {refused.reason}")


def _conv(name: str, x: Tensor, weight: Tensor, padding_l: int, normalization: str, dropconnect: float) -> Tensor:
    require(name, x, weight)
    operator = getattr(torch.ops.lightconv, name)
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    # drawn on x's device, so that a captured CUDA graph draws anew at every replay
    seed = torch.randint(2**62, (1,), device=x.device) if dropconnect > 0.0 else None
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _Conv.apply(operator, x, weight, padding_l, softmax, dropconnect, seed)
    return operator(x, weight, padding_l, softmax, dropconnect, seed)


class _Conv(torch.autograd.Function):
    """The raw operators with their gradients; what backward needs of the kernels is computed again there."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: Any,
        x: Tensor,
        weight: Tensor,
        padding_l: int,
        softmax: bool,
        dropconnect: float,
        seed: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, seed)
        ctx.options = (padding_l, softmax, dropconnect)
        ctx.backward_operator = getattr(torch.ops.lightconv, f"{operator.__name__}_backward")
        return operator(x, weight, padding_l, softmax, dropconnect, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, seed = ctx.saved_tensors
        _, need_x, need_weight = ctx.needs_input_grad[:3]
        grad_x, grad_weight = ctx.backward_operator(grad, x, weight, *ctx.options, seed, need_x, need_weight)
        return None, grad_x if need_x else None, grad_weight if need_weight else None, None, None, None, None


class _GluMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, padding_mask)
        return torch.ops.lightconv.glu_mask(x, padding_mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, padding_mask = ctx.saved_tensors
        return torch.ops.lightconv.glu_mask_backward(grad, x, padding_mask), None


class _Dropout(torch.autograd.Function):
    """Keeps the seed alone: the mask is computed again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: Tensor) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return torch.ops.lightconv.dropout(x, p, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return torch.ops.lightconv.dropout(grad, ctx.p, ctx.seed), None, None


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
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _grad_nll: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, log_sums = ctx.saved_tensors
        operator = torch.ops.lightconv.smoothed_nll_backward
        return operator(grad, logits, target, log_sums, *ctx.shares, ctx.ignore), None, None, None
