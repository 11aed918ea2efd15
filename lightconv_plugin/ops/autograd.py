"""Derivatives of the native convolutions, of any order and in both modes, and their rules for ``torch.func``.

A convolution is linear in x and in its normalised kernel, so that each derivative of it is one of the two operators
again, with the same seed: out = C(x, k), and the gradients of <grad, C(x, k)> are B(grad, x, k). A state before x is
linear with it: below, x stands for both. The softmax is part of the operators in the first pass; where further
derivatives may be asked for, PyTorch does it.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from lightconv_plugin.ops.normalization import normalize_kernel

# which gradients are needed: those of x, of the state before it, of the kernels
Need = tuple[bool, bool, bool]
Gradients = tuple[Tensor, Tensor, Tensor]  # one that is not needed has no elements
# of each argument the dimension over which vmap runs
Dims = tuple[int | None, ...]
Decision = TypeVar("Decision", bound=Callable[..., Any])


class Options(NamedTuple):
    """A convolution beside its tensors: the operator of the library, and what its derivatives take unchanged."""

    name: str
    padding_l: int
    p: float  # of DropConnect
    seed: Tensor | None
    offsets: Tensor | None  # of packed sentences


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
def conv(x: Tensor, state: Tensor | None, weight: Tensor, softmax: bool, *options: Any) -> Tensor:
    """Call a convolution of the library, differentiable in x, state and weight.

    Weights of a wider type than x are rounded to it; their gradient is not. With offsets (N + 1,), int64, x (T, 1, C)
    holds packed sentences. A state is (K - 1, B, C), of N sentences (K - 1, N, C).

    Args:
        options: those of ``Options``, in order.
    """
    if recorded(x, weight, state):
        return apply(_Conv, x, state, weight, softmax, *options)
    return _Conv.forward(x, state, weight, softmax, *options)


def recorded(*tensors: Tensor | None) -> bool:
    """Return True if derivatives of what is computed from these tensors may be asked for."""
    if torch.is_grad_enabled():
        for t in tensors:  # not any(), which takes as long again
            if t is not None and t.requires_grad:
                return True
    return transformed()


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply`` without its look at the signature, which takes longer than a small convolution."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    plain: Any = super(Function, function)
    return plain.apply(*torch._functorch.utils.unwrap_dead_wrappers(args))


def _operator(name: str) -> Any:
    return getattr(torch.ops.lightconv, name).default


def _backward(
    grad: Tensor, x: Tensor, state: Tensor | None, weight: Tensor, softmax: bool, options: Options, need: Need
) -> Gradients:
    """The gradients of x, state and weight."""
    if not recorded(grad, x, state, weight):
        return _ConvGradients.forward(grad, x, state, weight, softmax, *options, *need)
    if not softmax:
        return apply(_ConvGradients, grad, x, state, weight, softmax, *options, *need)
    kernel = normalize_kernel(weight)
    of_x, of_state, of_kernel = _backward(grad, x, state, kernel, False, options, need)
    return of_x, of_state, _through_softmax(kernel, of_kernel).to(weight.dtype) if need[2] else of_kernel


def _through_softmax(kernel: Tensor, change: Tensor) -> Tensor:
    """Apply the derivative of softmax, which is symmetric: to a gradient of kernels, or to a change of logits."""
    return kernel * (change - (kernel * change).sum(dim=-1, keepdim=True))


def _sum(*terms: Tensor | None) -> Tensor | None:
    """Add what is not None."""
    given = [term for term in terms if term is not None]
    return sum(given[1:], given[0]) if given else None


def _whole(change: Tensor | None, of: Tensor | None) -> Any:
    """The change of a tensor, where None stands for zeros."""
    return torch.zeros_like(of) if change is None and of is not None else change


def _keep(ctx: Any, tensors: tuple[Tensor | None, ...], options: Options) -> None:
    """Keep the inputs of a function for its derivatives."""
    ctx.name, ctx.padding_l, ctx.p, *more = options
    ctx.save_for_backward(*tensors, *more)
    ctx.save_for_forward(*tensors, *more)
    ctx.set_materialize_grads(False)


def _kept(ctx: Any) -> tuple[Any, ...]:
    """The tensors that ``_keep`` was given, and the options."""
    *tensors, seed, offsets = ctx.saved_tensors
    return *tensors, Options(ctx.name, ctx.padding_l, ctx.p, seed, offsets)


class _Conv(Function):
    """Keeps the operators' inputs alone: what backward needs of the kernels is computed again there."""

    @staticmethod
    def forward(x: Tensor, state: Tensor | None, weight: Tensor, softmax: bool, *options: Any) -> Tensor:
        name, padding_l, p, seed, offsets = options
        weight = weight if weight.dtype == x.dtype else weight.to(x.dtype)
        return _operator(name)(x, weight, padding_l, softmax, p, seed, offsets, state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.softmax = inputs[:4]
        _keep(ctx, (*tensors,), Options(*inputs[4:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 9
        x, state, weight, options = _kept(ctx)
        need = ctx.needs_input_grad[:3]
        grads = _backward(grad, x, state, weight, ctx.softmax, options, need)
        return *(to if needed else None for to, needed in zip(grads, need, strict=True)), *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dstate: Tensor | None, dweight: Tensor | None, *_: None) -> Tensor | None:
        x, state, weight, options = _kept(ctx)
        by_x = by_weight = None
        if dx is not None or dstate is not None:
            by_x = conv(_whole(dx, x), _whole(dstate, state), weight, ctx.softmax, *options)
        if dweight is not None:
            if ctx.softmax:
                dweight = _through_softmax(normalize_kernel(weight), dweight)
            by_weight = conv(x, state, dweight, False, *options)
        return _sum(by_x, by_weight)

    @staticmethod
    def vmap(
        info: Any, in_dims: Dims, x: Tensor, state: Tensor | None, weight: Tensor, softmax: bool, *given: Any
    ) -> tuple[Tensor, int]:
        size, options = info.batch_size, Options(*given)
        if options.seed is not None:
            each = examples(size, (x, state, weight, options.seed), (*in_dims[:3], in_dims[7]))
            return torch.stack([conv(a, b, c, softmax, *options._replace(seed=d)) for a, b, c, d in each]), 0
        x, state, weight = _fold(size, (x, state, weight), in_dims[:3])
        return conv(x, state, weight, softmax, *options).unflatten(-1, (size, -1)), 2


class _ConvGradients(Function):
    """Gradients of <grad, C(x, kernel)>; those that are not needed have no elements. Recorded without the softmax."""

    @staticmethod
    def forward(grad: Tensor, x: Tensor, state: Tensor | None, weight: Tensor, softmax: bool, *given: Any) -> Gradients:
        """Call the operator; the gradient of ``weight`` is of its type, rounded once."""
        name, padding_l, p, seed, offsets, need_x, need_state, need_weight = given
        operands = grad, x, weight.to(x.dtype), padding_l, softmax, p, seed, need_x, need_weight
        if state is None:
            (of_x, of_weight), of_state = _operator(f"{name}_backward")(*operands, offsets), x.new_empty(0)
        else:
            of_x, of_weight, of_state = _operator("behind_state_backward")(*operands, need_state, offsets, state)
        return of_x, of_state, of_weight.to(weight.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        ctx.need = inputs[10:]
        _keep(ctx, inputs[:4], Options(*inputs[5:10]))

    @staticmethod
    def backward(ctx: Any, *changes: Tensor | None) -> tuple[Tensor | None, ...]:
        """From L(g, x, k) = <g, C(x, k)>: <a, dL/dx> + <b, dL/dk> = L(g, a, k) + L(g, x, b)."""
        grad, x, state, kernel, options = _kept(ctx)
        need_grad, need_x, need_state, need_kernel = ctx.needs_input_grad[:4]
        of_x, of_state, of_kernel = (of if need else None for of, need in zip(changes, ctx.need, strict=True))
        to_grad = to_x = to_state = to_kernel = None
        if of_x is not None or of_state is not None:
            of_x, of_state = _whole(of_x, x), _whole(of_state, state)
            if need_grad:
                to_grad = conv(of_x, of_state, kernel, False, *options)
            if need_kernel:
                to_kernel = _backward(grad, of_x, of_state, kernel, False, options, (False, False, True))[2]
        if of_kernel is not None:
            if need_grad:
                to_grad = _sum(to_grad, conv(x, state, of_kernel, False, *options))
            if need_x or need_state:
                need = need_x, need_state, False
                found = _backward(grad, x, state, of_kernel, False, options, need)
                to_x, to_state = (to if needed else None for to, needed in zip(found[:2], need[:2], strict=True))
        return to_grad, to_x, to_state, to_kernel, *(None,) * 9

    @staticmethod
    def jvp(
        ctx: Any, dgrad: Tensor | None, dx: Tensor | None, dstate: Tensor | None, dkernel: Tensor | None, *_: None
    ) -> Gradients:
        grad, x, state, kernel, options = _kept(ctx)
        need_x, need_state, need_kernel = ctx.need
        to_x, to_state, to_kernel = (
            torch.zeros_like(t) if need else x.new_empty(0)
            for t, need in zip((x, state, kernel), ctx.need, strict=True)
        )
        if dgrad is not None:
            to_x, to_state, to_kernel = _backward(dgrad, x, state, kernel, False, options, ctx.need)
        if dkernel is not None and (need_x or need_state):
            more = _backward(grad, x, state, dkernel, False, options, (need_x, need_state, False))
            to_x, to_state = to_x + more[0], to_state + more[1]
        if (dx is not None or dstate is not None) and need_kernel:
            dx, dstate = _whole(dx, x), _whole(dstate, state)
            to_kernel = to_kernel + _backward(grad, dx, dstate, kernel, False, options, (False, False, True))[2]
        return to_x, to_state, to_kernel

    @staticmethod
    def vmap(info: Any, in_dims: Dims, *given: Any) -> tuple[Gradients, Dims]:
        size, tensors, options, need = info.batch_size, given[:4], Options(*given[5:10]), given[10:]
        if options.seed is not None:
            each = examples(size, (*tensors, options.seed), (*in_dims[:4], in_dims[8]))
            found = [_backward(a, b, c, d, False, options._replace(seed=e), need) for a, b, c, d, e in each]
            stacked: Any = tuple(torch.stack(ts) for ts in zip(*found, strict=True))
            return stacked, (0, 0, 0)
        grad, x, state, kernel = _fold(size, tensors, in_dims[:4])
        of_x, of_state, of_kernel = _backward(grad, x, state, kernel, False, options, need)
        of_x = of_x.unflatten(-1, (size, -1)) if need[0] else of_x
        of_state = of_state.unflatten(-1, (size, -1)) if need[1] else of_state
        of_kernel = of_kernel.unflatten(-2, (size, -1)).movedim(-3, 0) if need[2] else of_kernel
        dims = zip((2, 2, 0), need, strict=True)
        return (of_x, of_state, of_kernel), tuple(dim if needed else None for dim, needed in dims)


def examples(size: int, tensors: tuple[Tensor | None, ...], dims: Dims) -> Iterator[tuple[Any, ...]]:
    """The examples of a batch one by one, as a mask is drawn for one; a tensor without a batch serves all."""
    each = [(t,) * size if t is None or dim is None else t.unbind(dim) for t, dim in zip(tensors, dims, strict=True)]
    return zip(*each, strict=True)


def _fold(size: int, tensors: tuple[Tensor | None, ...], dims: Dims) -> Iterator[Any]:
    """Make the examples of a batch further heads: (N, ..., C) to (..., N * C), and the kernels (..., N * H, K)."""
    for i, (x, dim) in enumerate(zip(tensors, dims, strict=True), 1):
        if x is not None:
            last = 2 if i == len(tensors) else 1
            x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.movedim(0, -1 - last).flatten(-1 - last, -last)
        yield x
