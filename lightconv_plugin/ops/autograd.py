"""Derivatives of the native convolutions, of any order and in both modes, and their rules for ``torch.func``.

A convolution is linear in x and in its normalised kernel, so that each derivative of it is one of the two operators
again, with the same seed: out = C(x, k), and the gradients of <grad, C(x, k)> are B(grad, x, k). The softmax is part of
the operators in the first pass; where further derivatives may be asked for, PyTorch does it.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from lightconv_plugin.ops.normalization import normalize_kernel

# what a convolution takes beside its two tensors: padding_l, dropconnect, seed, and offsets of packed sentences
Options = tuple[int, float, Tensor | None, Tensor | None]
# which gradients are needed: that of x, that of its kernels
Need = tuple[bool, bool]
# of each argument the dimension over which vmap runs
Dims = tuple[int | None, ...]
Decision = TypeVar("Decision", bound=Callable[..., Any])


IN_GRAPH: list[Callable[..., Tensor]] = []
CONSTANT: list[Callable[..., Any]] = []


def in_graph(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Have torch.compile take a function as it is; see ``ops.compiling``."""
    IN_GRAPH.append(function)
    return function


def constant(function: Decision) -> Decision:
    """Have torch.compile call a function while it compiles, and keep what it gives; see ``ops.compiling``."""
    CONSTANT.append(function)
    return function


def transformed() -> bool:
    """Return True inside of a transform of ``torch.func`` and where forward-mode derivatives are computed."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


@constant
def beyond_functions() -> bool:
    """Return True inside of transforms of ``torch.func`` that PyTorch's Functions cannot take.

    These are ``functionalize``, and forward mode within forward mode: PyTorch runs a Function's ``jvp`` with forward
    mode off (its issue 197867), so that the outer derivative would be lost without a word.
    """
    if not torch._C._are_functorch_transforms_active():
        return False
    kinds = torch._C._functorch.TransformType
    levels = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    return kinds.Functionalize in levels or levels.count(kinds.Jvp) > 1


@in_graph
def conv(
    name: str,
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    softmax: bool,
    p: float,
    seed: Tensor | None,
    offsets: Tensor | None = None,
) -> Tensor:
    """The operator ``name`` of the library, differentiable in x and weight.

    Weights of a wider type than x are rounded to it; their gradient is not. With offsets (N + 1,), int64, x (T, 1, C)
    holds packed sentences.
    """
    if recorded(x, weight):
        return apply(_Conv, name, x, weight, padding_l, softmax, p, seed, offsets)
    return _operator(name)(x, weight.to(x.dtype), padding_l, softmax, p, seed, offsets)


def recorded(*tensors: Tensor) -> bool:
    """Return True if derivatives of what is computed from these tensors may be asked for."""
    return (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)) or transformed()


def _operator(name: str) -> Any:
    return getattr(torch.ops.lightconv, name)


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply`` without its look at the signature, which takes longer than a small convolution."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    plain: Any = super(Function, function)
    return plain.apply(*torch._functorch.utils.unwrap_dead_wrappers(args))


def _conv_backward(
    name: str, grad: Tensor, x: Tensor, weight: Tensor, softmax: bool, options: Options, need: Need
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight; one that is not needed has no elements."""
    if not recorded(grad, x, weight):
        return _run_backward(name, grad, x, weight, softmax, options, need)
    if not softmax:
        return apply(_ConvGradients, name, grad, x, weight, *options, *need)
    kernel = normalize_kernel(weight)
    grad_x, grad_kernel = _conv_backward(name, grad, x, kernel, False, options, need)
    return grad_x, _through_softmax(kernel, grad_kernel).to(weight.dtype) if need[1] else grad_kernel


def _run_backward(
    name: str, grad: Tensor, x: Tensor, weight: Tensor, softmax: bool, options: Options, need: Need
) -> tuple[Tensor, Tensor]:
    """Call the operator; the gradient of ``weight`` is of its type, rounded once."""
    padding_l, p, seed, offsets = options
    of_x, of_weight = _operator(f"{name}_backward")(
        grad, x, weight.to(x.dtype), padding_l, softmax, p, seed, *need, offsets
    )
    return of_x, of_weight.to(weight.dtype)


def _through_softmax(kernel: Tensor, change: Tensor) -> Tensor:
    """Apply the derivative of softmax, which is symmetric: to a gradient of kernels, or to a change of logits."""
    return kernel * (change - (kernel * change).sum(dim=-1, keepdim=True))


def _sum(*terms: Tensor | None) -> Tensor | None:
    """Add what is not None."""
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


class _Conv(Function):
    """Keeps the operators' inputs alone: what backward needs of the kernels is computed again there."""

    @staticmethod
    def forward(name: str, x: Tensor, weight: Tensor, *options: Any) -> Tensor:
        return _operator(name)(x, weight.to(x.dtype), *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.name, x, weight, ctx.padding_l, ctx.softmax, ctx.p, seed, offsets = inputs
        ctx.save_for_backward(x, weight, seed, offsets)
        ctx.save_for_forward(x, weight, seed, offsets)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        to_x = to_weight = None
        if grad is not None:
            x, weight, *rest = ctx.saved_tensors
            need_x, need_weight = need = ctx.needs_input_grad[1:3]
            grads = _conv_backward(ctx.name, grad, x, weight, ctx.softmax, (ctx.padding_l, ctx.p, *rest), need)
            to_x, to_weight = grads[0] if need_x else None, grads[1] if need_weight else None
        return None, to_x, to_weight, *(None,) * 5

    @staticmethod
    def jvp(ctx: Any, _name: None, dx: Tensor | None, dweight: Tensor | None, *_: None) -> Tensor | None:
        x, weight, *rest = ctx.saved_tensors
        by_x = by_weight = None
        if dx is not None:
            by_x = conv(ctx.name, dx, weight, ctx.padding_l, ctx.softmax, ctx.p, *rest)
        if dweight is not None:
            if ctx.softmax:
                dweight = _through_softmax(normalize_kernel(weight), dweight)
            by_weight = conv(ctx.name, x, dweight, ctx.padding_l, False, ctx.p, *rest)
        return _sum(by_x, by_weight)

    @staticmethod
    def vmap(info: Any, in_dims: Dims, name: str, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, int]:
        size, (padding_l, softmax, p, seed, offsets) = info.batch_size, options
        if seed is not None:
            each = examples(size, (x, weight, seed), (*in_dims[1:3], in_dims[6]))
            return torch.stack([conv(name, a, b, padding_l, softmax, p, c, offsets) for a, b, c in each]), 0
        folded = _fold(size, x, in_dims[1], 1), _fold(size, weight, in_dims[2], 2)
        return conv(name, *folded, *options).unflatten(-1, (size, -1)), 2


class _ConvGradients(Function):
    """Gradients of <grad, C(x, kernel)>; those that are not needed have no elements."""

    @staticmethod
    def forward(name: str, grad: Tensor, x: Tensor, kernel: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        padding_l, p, seed, offsets, need_x, need_kernel = options
        return _run_backward(name, grad, x, kernel, False, (padding_l, p, seed, offsets), (need_x, need_kernel))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.name, grad, x, kernel, ctx.padding_l, ctx.p, seed, offsets, *ctx.need = inputs
        ctx.save_for_backward(grad, x, kernel, seed, offsets)
        ctx.save_for_forward(grad, x, kernel, seed, offsets)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor | None, of_kernel: Tensor | None) -> tuple[Tensor | None, ...]:
        """From L(g, x, k) = <g, C(x, k)>: <a, dL/dx> + <b, dL/dk> = L(g, a, k) + L(g, x, b)."""
        grad, x, kernel, *rest = ctx.saved_tensors
        options = (ctx.padding_l, ctx.p, *rest)
        need_grad, need_x, need_kernel = ctx.needs_input_grad[1:4]
        of_x, of_kernel = of_x if ctx.need[0] else None, of_kernel if ctx.need[1] else None
        to_grad = to_x = to_kernel = None
        if of_x is not None:
            if need_grad:
                to_grad = conv(ctx.name, of_x, kernel, ctx.padding_l, False, ctx.p, *rest)
            if need_kernel:
                to_kernel = _conv_backward(ctx.name, grad, of_x, kernel, False, options, (False, True))[1]
        if of_kernel is not None:
            if need_grad:
                to_grad = _sum(to_grad, conv(ctx.name, x, of_kernel, ctx.padding_l, False, ctx.p, *rest))
            if need_x:
                to_x = _conv_backward(ctx.name, grad, x, of_kernel, False, options, (True, False))[0]
        return None, to_grad, to_x, to_kernel, *(None,) * 6

    @staticmethod
    def jvp(
        ctx: Any, _name: None, dgrad: Tensor | None, dx: Tensor | None, dkernel: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor]:
        grad, x, kernel, *rest = ctx.saved_tensors
        options, (need_x, need_kernel) = (ctx.padding_l, ctx.p, *rest), ctx.need
        to_x = torch.zeros_like(x) if need_x else x.new_empty(0)
        to_kernel = torch.zeros_like(kernel) if need_kernel else x.new_empty(0)
        if dgrad is not None:
            to_x, to_kernel = _conv_backward(ctx.name, dgrad, x, kernel, False, options, (need_x, need_kernel))
        if dkernel is not None and need_x:
            to_x = to_x + _conv_backward(ctx.name, grad, x, dkernel, False, options, (True, False))[0]
        if dx is not None and need_kernel:
            to_kernel = to_kernel + _conv_backward(ctx.name, grad, dx, kernel, False, options, (False, True))[1]
        return to_x, to_kernel

    @staticmethod
    def vmap(
        info: Any, in_dims: Dims, name: str, grad: Tensor, x: Tensor, kernel: Tensor, *options: Any
    ) -> tuple[tuple[Tensor, Tensor], Dims]:
        size, (padding_l, p, seed, offsets, need_x, need_kernel) = info.batch_size, options
        need = (need_x, need_kernel)
        if seed is not None:
            each = examples(size, (grad, x, kernel, seed), (*in_dims[1:4], in_dims[6]))
            found = [_conv_backward(name, a, b, c, False, (padding_l, p, d, offsets), need) for a, b, c, d in each]
            return (torch.stack([one for one, _ in found]), torch.stack([other for _, other in found])), (0, 0)
        folded = _fold(size, grad, in_dims[1], 1), _fold(size, x, in_dims[2], 1), _fold(size, kernel, in_dims[3], 2)
        grad_x, grad_kernel = _conv_backward(name, *folded, False, (padding_l, p, seed, offsets), need)
        if need_x:
            grad_x = grad_x.unflatten(-1, (size, -1))
        if need_kernel:
            grad_kernel = grad_kernel.unflatten(-2, (size, -1)).movedim(-3, 0)
        return (grad_x, grad_kernel), (2 if need_x else None, 0 if need_kernel else None)


def examples(size: int, tensors: tuple[Tensor, ...], dims: Dims) -> Iterator[tuple[Tensor, ...]]:
    """The examples of a batch one by one, as a mask is drawn for one; a tensor without a batch serves all."""
    each = [(t,) * size if dim is None else t.unbind(dim) for t, dim in zip(tensors, dims, strict=True)]
    return zip(*each, strict=True)


def _fold(size: int, x: Tensor, dim: int | None, last: int) -> Tensor:
    """Make the examples of a batch further heads: (N, ..., C) to (..., N * C), or, last = 2, (..., N * H, K)."""
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.movedim(0, -1 - last).flatten(-1 - last, -last)
