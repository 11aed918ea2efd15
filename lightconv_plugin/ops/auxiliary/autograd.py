"""Derivatives of the native operators beside the convolutions, whose own are in ``native.autograd``."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from lightconv_plugin.ops.native.autograd import apply, examples, in_graph, recorded


@in_graph
def dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """``torch.ops.lightconv.dropout``, differentiable in x."""
    if recorded(x):
        return apply(_Dropout, x, p, seed)
    return torch.ops.lightconv.dropout(x, p, seed)


@in_graph
def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """``torch.ops.lightconv.glu_mask``, differentiable in x."""
    if recorded(x):
        return apply(_GluMask, x, padding_mask)
    return torch.ops.lightconv.glu_mask(x, padding_mask)


def bf16_linear(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
    """``torch.ops.lightconv.bf16_linear``, differentiable in x, weight and bias."""
    if recorded(*(t for t in (x, weight, bias) if t is not None)):
        return apply(_Bf16Linear, x, weight, bias)
    return torch.ops.lightconv.bf16_linear(x, weight, bias, packed)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.linear`` whose gradient of the bias is ``torch.ops.lightconv.column_sums``."""
    return apply(_Linear, x, weight, bias)


def residual_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, seed: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """``torch.ops.lightconv.residual_norm``'s normalised rows, and the rows before, differentiable in all tensors."""
    if recorded(x, y, weight, bias):
        return apply(_ResidualNorm, x, y, weight, bias, p, seed, eps)
    return torch.ops.lightconv.residual_norm(x, y, weight, bias, p, seed, eps)[:2]


def smoothed_nll(logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """See ``training.smoothed_nll``. The first result has a gradient.

    With s bytes a logit, forward and backward together move 3 * N * V * s bytes of a GPU's memory. A target outside
    0..V-1 is an error on a CPU. On a GPU it gives NaN, since an error would have to wait for the device.
    """
    return _SmoothedNll.apply(logits, target, smoothing, ignore)


class _Dropout(Function):
    """Keeps the seed alone: it is linear, and every derivative of it is itself."""

    @staticmethod
    def forward(x: Tensor, p: float, seed: Tensor) -> Tensor:
        return torch.ops.lightconv.dropout(x, p, seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, Tensor], output: Tensor) -> None:
        _, ctx.p, seed = inputs
        ctx.save_for_backward(seed)
        ctx.save_for_forward(seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return dropout(grad, ctx.p, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *_: None) -> Tensor:
        return dropout(dx, ctx.p, *ctx.saved_tensors)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None, int | None], x: Tensor, p: float, seed: Tensor
    ) -> tuple[Tensor, int]:
        each = examples(info.batch_size, (x, seed), (in_dims[0], in_dims[2]))
        return torch.stack([dropout(a, p, b) for a, b in each]), 0


class _GluMask(Function):
    """The gate; its further derivatives are PyTorch's."""

    @staticmethod
    def forward(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return torch.ops.lightconv.glu_mask(x, padding_mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, padding_mask = ctx.saved_tensors
        if not recorded(grad, x):
            return torch.ops.lightconv.glu_mask_backward(grad, x, padding_mask), None
        if padding_mask is not None:
            grad = grad.masked_fill(padding_mask.t().unsqueeze(-1), 0)
        return torch.ops.aten.glu_backward(grad, x, -1), None


class _ResidualNorm(Function):
    """Keeps the rows before the norm and the seed; its further derivatives are PyTorch's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, seed: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        out, z, stats = torch.ops.lightconv.residual_norm(x, y, weight, bias, p, seed, eps)
        ctx.save_for_backward(z, weight, stats, seed)
        ctx.p = p
        ctx.set_materialize_grads(False)
        return out, z

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
        z, weight, stats, seed = ctx.saved_tensors
        grad = torch.zeros_like(z) if grad is None else grad
        if not recorded(grad, z, weight):
            operator = torch.ops.lightconv.residual_norm_backward
            of_x, of_y, of_affine = operator(grad, grad_z, z, weight, stats, ctx.p, seed)
            return of_x, of_y if ctx.p > 0 else of_x, of_affine[0], of_affine[1], None, None, None
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            grad, z, z.shape[-1:], *stats, weight, None, [True, True, False]
        )
        of_x = of_x if grad_z is None else of_x + grad_z
        of_y = of_x
        if ctx.p > 0:  # the factors of the same mask: what becomes of ones
            ones, any_weight = torch.ones_like(z, dtype=stats.dtype), weight.detach().to(stats.dtype)
            again = torch.zeros_like(ones), ones, any_weight, any_weight, ctx.p, seed, 1.0
            of_y = (of_x * torch.ops.lightconv.residual_norm(*again)[1]).to(z.dtype)
        return of_x, of_y, of_weight, grad.flatten(0, -2).sum(dim=0), None, None, None


class _Linear(Function):
    """Leaves the products to PyTorch, and its further derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        sums = None if recorded(grad, x, weight) else torch.ops.lightconv.column_sums
        return _gradients_of_linear(grad, x, weight, ctx.needs_input_grad, sums)


def _gradients_of_linear(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    need: tuple[bool, bool, bool],
    sums: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients by PyTorch's products; ``sums`` adds up the rows of a matrix, where PyTorch is not to do it."""
    rows = _matrix(grad)
    of_bias = None
    if need[2]:
        of_bias = rows.sum(dim=0) if sums is None else sums(rows)
    return (rows @ weight).view_as(x) if need[0] else None, rows.T @ _matrix(x) if need[1] else None, of_bias


def _matrix(x: Tensor) -> Tensor:
    return x.flatten(0, -2) if x.ndim > 1 else x.unsqueeze(0)


class _Bf16Linear(Function):
    """Rounds the operands of its three products; its further derivatives are PyTorch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.lightconv.bf16_linear(x, weight, bias, None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        if recorded(grad, x, weight):
            return _gradients_of_linear(grad, x, weight, ctx.needs_input_grad)
        together = need_weight and need_bias
        of_x, of_weight, of_bias = torch.ops.lightconv.bf16_linear_backward(
            grad, x, weight, need_x, need_weight, together
        )
        if need_bias and not together:
            of_bias = _matrix(grad).sum(dim=0)
        return of_x if need_x else None, of_weight if need_weight else None, of_bias if need_bias else None


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
        if recorded(grad, logits):
            return _smoothed_nll_gradient(grad, logits, target, ctx.shares, ctx.ignore), None, None, None
        operator = torch.ops.lightconv.smoothed_nll_backward
        return operator(grad, logits, target, log_sums, *ctx.shares, ctx.ignore), None, None, None


def _smoothed_nll_gradient(
    grad: Tensor, logits: Tensor, target: Tensor, shares: tuple[float, float], ignore: int
) -> Tensor:
    """Return what ``torch.ops.lightconv.smoothed_nll_backward`` gives, differentiable in grad and logits."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    ignored, p = (target == ignore).unsqueeze(1), torch.softmax(wide, dim=-1)
    wanted = torch.zeros_like(p).scatter(1, target.unsqueeze(1).masked_fill(ignored, 0), 1.0)
    of_nll, of_all = shares
    slope = (of_nll + of_all * logits.shape[1]) * p - of_nll * wanted - of_all
    return (grad * slope.masked_fill(ignored, 0)).to(logits.dtype)
