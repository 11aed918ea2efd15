"""Derivatives: the first ones by the library, all further ones by the definition.

A convolution's gradients come from its operators. A backward pass that is itself recorded (``create_graph``) or
transformed differentiates the definition instead, with the masks that were drawn. Inside of a transform, of forward
mode and of a program that another tool records, the definition runs from the start; see ``backend.choose_backend``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.normalization import normalize_kernel
from lightconv_plugin.ops.sequences import convolve_packed

Decision = TypeVar("Decision", bound=Callable[..., Any])
PROXY = torch._C._TorchDispatchModeKey.PROXY


def constant(function: Decision) -> Decision:
    """Have torch.compile call a function while it compiles, and keep what it gives.

    This is ``torch.compiler.assume_constant_result`` without its import of the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant
def transformed() -> bool:
    """Return True inside of a transform of ``torch.func`` and where forward-mode derivatives are computed."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


@constant
def recording() -> bool:
    """Return True while another tool records a program: torch.export, torch.jit.trace, torch.onnx.export, make_fx.

    Such a program may be loaded where the library is not, and be called with other lengths.
    """
    return torch._C._is_tracing() or torch.compiler.is_exporting() or torch._C._get_dispatch_mode(PROXY) is not None


def recorded(*tensors: Tensor | None) -> bool:
    """Return True if derivatives of what is computed from these tensors may be asked for."""
    if torch.is_grad_enabled():
        for t in tensors:  # not any(), which takes as long again
            if t is not None and t.requires_grad:
                return True
    return transformed()


def apply(function: type[Function], *args: Any) -> Any:
    """Call ``function.apply``."""
    return function.apply(*args)


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


def conv(x: Tensor, state: Tensor | None, weight: Tensor, *options: Any) -> Tensor:
    """Call a convolution of the library, differentiable in x, state and weight.

    Weights of a wider type than x are rounded to it; their gradient is not. A state is (K - 1, B, C), of N packed
    sentences (K - 1, N, C).

    Args:
        options: take the softmax of weight; the operator's name; padding_l; DropConnect's probability and seed;
            offsets (N + 1,), int64, of packed sentences x (T, 1, C).
    """
    if recorded(x, weight, state):
        return _Conv.apply(x, state, weight, *options)
    return _forward(x, state, weight, *options)


def _forward(
    x: Tensor,
    state: Tensor | None,
    weight: Tensor,
    softmax: bool,
    name: str,
    padding_l: int,
    p: float,
    seed: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    weight = weight if weight.dtype == x.dtype else weight.to(x.dtype)
    return getattr(torch.ops.lightconv, name).default(x, weight, padding_l, softmax, p, seed, offsets, state)


class _Conv(Function):
    """Keeps the operator's inputs alone: what backward needs of the kernels is computed again there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor | None, weight: Tensor, *options: Any) -> Tensor:
        *ctx.options, seed, offsets = options
        ctx.save_for_backward(x, state, weight, seed, offsets)
        return _forward(x, state, weight, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, state, weight, seed, offsets = ctx.saved_tensors
        softmax, name, padding_l, p = ctx.options
        need = need_x, need_state, need_weight = ctx.needs_input_grad[:3]
        if recorded(grad, x, state, weight):
            factors = _factors(x, state, weight, padding_l, p, seed) if p > 0 else None
            definition = partial(_definition, softmax=softmax, padding_l=padding_l, factors=factors, offsets=offsets)
            return *gradients_of(definition, (x, state, weight), need, grad), *(None,) * 6
        operands = grad, x, weight.to(x.dtype), padding_l, softmax, p, seed, need_x, need_weight
        of_state = None
        if state is None:
            of_x, of_weight = getattr(torch.ops.lightconv, f"{name}_backward").default(*operands, offsets)
        else:
            backward = torch.ops.lightconv.behind_state_backward.default
            of_x, of_weight, of_state = backward(*operands, need_state, offsets, state)
        grads = (of_x, of_state, of_weight.to(weight.dtype))
        return *(of if needed else None for of, needed in zip(grads, need, strict=True)), *(None,) * 6


def _factors(x: Tensor, state: Tensor | None, weight: Tensor, padding_l: int, p: float, seed: Tensor | None) -> Tensor:
    """Return DropConnect's factors (T, B, H, K), 0 or 1 / (1 - p): the kernels' gradient, where all else is ones."""
    places, (heads, width) = x.shape[:2], weight.shape[-2:]
    kernel = torch.ones(*places, heads, width, device=x.device)
    ones = kernel[..., 0].contiguous()
    operands = ones, ones, kernel, padding_l, False, p, seed, False, True
    if state is None:  # taps that see nothing have no gradient, and no use
        return torch.ops.lightconv.dynamic_conv_backward(*operands)[1]
    before = ones.new_ones(width - 1, places[1], heads)
    return torch.ops.lightconv.behind_state_backward(*operands, False, None, before)[1]


def _definition(
    x: Tensor,
    state: Tensor | None,
    weight: Tensor,
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
