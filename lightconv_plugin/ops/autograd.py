"""Derivatives: the library computes first derivatives, the reference implementation all higher ones.

The gradients of a convolution come from the library's operators. A backward pass that is itself recorded
(``create_graph``) or transformed differentiates the reference implementation instead, with the same dropout masks.
Inside a transform of ``torch.func``, in forward mode and in a program that another tool records, the reference
implementation runs from the start; see ``backend.choose_backend``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from lightconv_plugin.ops import reference, torch_private
from lightconv_plugin.ops.normalization import normalize_kernel
from lightconv_plugin.ops.sequences import convolve_packed


@torch_private.constant
def transformed() -> bool:
    """Return True inside a transform of ``torch.func`` and where forward-mode derivatives are computed."""
    return torch_private.is_in_transform() or torch_private.is_in_forward_mode()


@torch_private.constant
def recording() -> bool:
    """Return True while another tool records a program: torch.export, torch.jit.trace, torch.onnx.export, make_fx.

    Such a program may be loaded without the library, and called with inputs of other lengths.
    """
    return torch_private.is_tracing() or torch.compiler.is_exporting() or torch_private.is_in_make_fx()


def has_values(x: Tensor) -> bool:
    """Return True if a tensor's values can be read.

    They cannot be read while a program is recorded, compiled or transformed, or while only shapes are computed
    (FakeTensorMode).
    """
    return type(x) is Tensor and not (torch.compiler.is_compiling() or transformed() or recording())


def recorded(*tensors: Tensor | None) -> bool:
    """Return True if derivatives with respect to these tensors may be needed later."""
    if torch.is_grad_enabled():
        for t in tensors:  # a loop, since any() takes twice as long
            if t is not None and t.requires_grad:
                return True
    return transformed()


def gradients_of(
    function: Callable[..., Any], tensors: Sequence[Tensor | None], need: Sequence[bool], grads: Any
) -> list[Any]:
    """Return the gradients of ``function(*tensors)``, differentiable in ``tensors`` and ``grads``.

    Args:
        function: a computation in PyTorch's own operators.
        tensors: its arguments.
        need: for each tensor, True if its gradient is needed. The result is None for the other tensors.
        grads: the gradient of the function's result.
    """
    with torch.enable_grad():
        # views, since one of the tensors may have been computed from another
        inputs = [t.view_as(t) if needed and t is not None else t for t, needed in zip(tensors, need, strict=True)]
        leaves = [t for t, needed in zip(inputs, need, strict=True) if needed and t is not None]
        gradients = iter(torch.autograd.grad(function(*inputs), leaves, grads, create_graph=True))
    return [next(gradients) if needed else None for needed in need]


def conv(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """Call a convolution of the library, differentiable in x, weight and state.

    Weights of a wider type than x are rounded to x's type; their gradient keeps the wider type.

    Args:
        x: (T, B, C); packed sentences (T, 1, C).
        weight: (H, K), or (T, B, H, K).
        options: further arguments of the operator, in its order: padding_l; True if weight holds logits and the
            operator must take their softmax; DropConnect's probability and seed; the offsets (N + 1,), int64, of N
            packed sentences or None; the state (K - 1, B, C), or (K - 1, N, C) of packed sentences, or None.

    Returns:
        A tensor of x's shape and type.
    """
    if recorded(x, weight, options[-1]):
        return _Conv.apply(x, weight, *options)
    return _forward(x, weight, *options)


def _forward(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    operator = torch.ops.lightconv.light_conv if weight.ndim == 2 else torch.ops.lightconv.dynamic_conv
    return operator.default(x, weight if weight.dtype == x.dtype else weight.to(x.dtype), *options)


class _Conv(Function):
    """Convolution of the library. Only its inputs are saved; the backward pass normalises the kernels again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *options: Any) -> Tensor:
        *ctx.options, seed, offsets, state = options
        ctx.save_for_backward(x, weight, seed, offsets, state)
        return _forward(x, weight, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, seed, offsets, state = ctx.saved_tensors
        padding_l, softmax, p = ctx.options
        need = [ctx.needs_input_grad[i] for i in (0, 1, -1)]
        if recorded(grad, x, weight, state):
            factors = _factors(x, weight, padding_l, p, seed, state) if p > 0 else None
            function = partial(_reference, softmax=softmax, padding_l=padding_l, factors=factors, offsets=offsets)
            gradients = gradients_of(function, (x, weight, state), need, grad)
        else:
            operands = grad, x, weight.to(x.dtype), padding_l, softmax, p, seed
            gradients = list(torch.ops.lightconv.conv_backward.default(*operands, *need, offsets, state))
            gradients[1] = gradients[1].to(weight.dtype)
        # the operator returns an empty tensor for a gradient that is not needed
        pairs = zip(gradients, need, strict=True)
        grad_x, grad_weight, grad_state = (gradient if needed else None for gradient, needed in pairs)
        return grad_x, grad_weight, *(None,) * 5, grad_state


def _factors(x: Tensor, weight: Tensor, padding_l: int, p: float, seed: Tensor | None, state: Tensor | None) -> Tensor:
    """Return DropConnect's factors (T, B, H, K), each 0 or 1 / (1 - p), as the forward pass drew them.

    They are computed as the gradient of kernels for inputs of ones, one channel per head, and an output gradient of
    ones.
    """
    (time, batch), (heads, width) = x.shape[:2], weight.shape[-2:]
    kernel = torch.ones(time, batch, heads, width, device=x.device)
    ones = kernel[..., 0].contiguous()
    # Without a state, taps on the padding get the factor 0. They are multiplied by zeros anyway.
    state_of_ones = None if state is None else ones.new_ones(width - 1, batch, heads)
    options = padding_l, False, p, seed, False, True, False, None, state_of_ones
    return torch.ops.lightconv.conv_backward(ones, ones, kernel, *options)[1]


def _reference(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None,
    *,
    softmax: bool,
    padding_l: int,
    factors: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    """Compute the library's convolution with the reference implementation and DropConnect's ``factors``."""
    kernel = normalize_kernel(weight, "softmax" if softmax else "none")
    kernel = kernel if factors is None else kernel * factors
    operator = reference.light_conv if kernel.ndim == 2 else reference.dynamic_conv
    conv = partial(operator, padding_l=padding_l, normalization="none")
    if offsets is None:
        return conv(x, kernel, initial_state=state)
    return convolve_packed(conv, x, kernel, padding_l, offsets, state)
