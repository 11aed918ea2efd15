"""Derivatives: the first ones by the library, all further ones by the definition.

A convolution's gradients come from its operators. A backward pass that is itself recorded (``create_graph``) or
transformed differentiates the definition instead, with the masks that were drawn. Inside of a transform, of forward
mode and of a program that another tool records, the definition runs from the start; see ``backend.choose_backend``.
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
    """Return True inside of a transform of ``torch.func`` and where forward-mode derivatives are computed."""
    return torch_private.is_in_transform() or torch_private.is_in_forward_mode()


@torch_private.constant
def recording() -> bool:
    """Return True while another tool records a program: torch.export, torch.jit.trace, torch.onnx.export, make_fx.

    Such a program may be loaded where the library is not, and be called with other lengths.
    """
    return torch_private.is_tracing() or torch.compiler.is_exporting() or torch_private.is_in_make_fx()


def has_values(x: Tensor) -> bool:
    """Return True if a tensor's numbers can be read.

    They cannot while a program is recorded, compiled or transformed, nor where only shapes are computed
    (FakeTensorMode).
    """
    return type(x) is Tensor and not (torch.compiler.is_compiling() or transformed() or recording())


def recorded(*tensors: Tensor | None) -> bool:
    """Return True if derivatives of what is computed from these tensors may be asked for."""
    if torch.is_grad_enabled():
        for t in tensors:  # not any(), which takes as long again
            if t is not None and t.requires_grad:
                return True
    return transformed()


def gradients_of(
    definition: Callable[..., Any], tensors: Sequence[Tensor | None], need: Sequence[bool], grads: Any
) -> list[Any]:
    """Return the gradients of ``definition(*tensors)`` that are needed, differentiable in ``tensors`` and ``grads``."""
    with torch.enable_grad():
        # views, since one of the tensors may have been computed from another
        own = [t.view_as(t) if needed and t is not None else t for t, needed in zip(tensors, need, strict=True)]
        wanted = [t for t, needed in zip(own, need, strict=True) if needed and t is not None]
        found = iter(torch.autograd.grad(definition(*own), wanted, grads, create_graph=True))
    return [next(found) if needed else None for needed in need]


def conv(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """Call a convolution of the library, differentiable in x, weight and state.

    Weights of a wider type than x are rounded to it; their gradient is not. A state is (K - 1, B, C), of N packed
    sentences (K - 1, N, C).

    Args:
        options: the operators': padding_l; take the softmax of weight; DropConnect's probability and seed; offsets
            (N + 1,), int64, of packed sentences x (T, 1, C); the state.
    """
    if recorded(x, weight, options[-1]):
        return _Conv.apply(x, weight, *options)
    return _forward(x, weight, *options)


def _forward(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
    operator = torch.ops.lightconv.light_conv if weight.ndim == 2 else torch.ops.lightconv.dynamic_conv
    return operator.default(x, weight if weight.dtype == x.dtype else weight.to(x.dtype), *options)


class _Conv(Function):
    """Keeps the operator's inputs alone: what backward needs of the kernels is computed again there."""

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
            definition = partial(_definition, softmax=softmax, padding_l=padding_l, factors=factors, offsets=offsets)
            found = gradients_of(definition, (x, weight, state), need, grad)
        else:
            operands = grad, x, weight.to(x.dtype), padding_l, softmax, p, seed
            found = list(torch.ops.lightconv.conv_backward.default(*operands, *need, offsets, state))
            found[1] = found[1].to(weight.dtype)
        of_x, of_weight, of_state = (of if needed else None for of, needed in zip(found, need, strict=True))
        return of_x, of_weight, *(None,) * 5, of_state


def _factors(x: Tensor, weight: Tensor, padding_l: int, p: float, seed: Tensor | None, state: Tensor | None) -> Tensor:
    """Return DropConnect's factors (T, B, H, K), 0 or 1 / (1 - p): the kernels' gradient, where all else is ones."""
    places, (heads, width) = x.shape[:2], weight.shape[-2:]
    kernel = torch.ones(*places, heads, width, device=x.device)
    ones = kernel[..., 0].contiguous()
    # without a state taps that see nothing have no gradient, and no use
    before = None if state is None else ones.new_ones(width - 1, places[1], heads)
    rules = padding_l, False, p, seed, False, True, False, None, before
    return torch.ops.lightconv.conv_backward(ones, ones, kernel, *rules)[1]


def _definition(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None,
    *,
    softmax: bool,
    padding_l: int,
    factors: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    kernel = normalize_kernel(weight, "softmax" if softmax else "none")
    kernel = kernel if factors is None else kernel * factors
    operator = reference.light_conv if kernel.ndim == 2 else reference.dynamic_conv
    conv = partial(operator, padding_l=padding_l, normalization="none")
    if offsets is None:
        return conv(x, kernel, initial_state=state)
    return convolve_packed(conv, x, kernel, padding_l, offsets, state)
