"""Fused operators of training, with derivatives: a reference implementation in PyTorch, and the library's operator.

Each call with dropout or DropConnect draws its own seed from torch's generator, on the device of its input. So the host
does not wait, and each replay of a captured CUDA graph draws new masks. One seed for a whole update would save at most
4 microseconds a call, and would be wrong: ``torch.utils.checkpoint`` only restores the generator before it recomputes a
layer, so the layer would use the seed of the batch that went forward last.
"""

import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.autograd import gradients_of, recorded, transformed
from lightconv_plugin.ops.backend import takes

READY_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def glu_mask(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Apply the gate before the convolution: x (T, B, 2C) gives (T, B, C), zero where padding_mask (B, T) is true."""
    return (native_glu_mask if takes("glu_mask", x) else reference.glu_mask)(x, padding_mask)


def native_glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """``torch.ops.lightconv.glu_mask``, differentiable in x."""
    if recorded(x):
        return _GluMask.apply(x, padding_mask)
    return torch.ops.lightconv.glu_mask(x, padding_mask)


class _GluMask(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, padding_mask)
        return torch.ops.lightconv.glu_mask(x, padding_mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, padding_mask = ctx.saved_tensors
        if recorded(grad, x):
            return gradients_of(lambda x: reference.glu_mask(x, padding_mask), (x,), (True,), grad)[0], None
        return torch.ops.lightconv.glu_mask_backward(grad, x, padding_mask), None


def dropout(x: Tensor, p: float) -> Tensor:
    """Set each number of x, of any shape, to 0 with probability p, and divide the others by 1 - p.

    On a CPU PyTorch draws masks sequentially. The library draws them in parallel, from a seed of torch's generator.

    Raises:
        ValueError: p outside 0..1.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout: p is {p}; expected 0 <= p <= 1")
    if p in (0.0, 1.0) or not takes("dropout", x):
        return F.dropout(x, p)
    return native_dropout(x, p, torch.randint(2**62, (1,), device=x.device))


def native_dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
    """``torch.ops.lightconv.dropout``, differentiable in x."""
    if recorded(x):
        return _Dropout.apply(x, p, seed)
    return torch.ops.lightconv.dropout(x, p, seed)


class _Dropout(Function):
    """Dropout that saves only its seed: it is linear, so its derivative is dropout with the same mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: Tensor) -> Tensor:
        ctx.p = p
        ctx.save_for_backward(seed)
        return torch.ops.lightconv.dropout(x, p, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (seed,) = ctx.saved_tensors
        if not recorded(grad):
            return torch.ops.lightconv.dropout(grad, ctx.p, seed), None, None
        ones = torch.ones(grad.shape, dtype=grad.dtype, device=grad.device)
        return grad * torch.ops.lightconv.dropout(ones, ctx.p, seed), None, None


def residual_norm(x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, p: float, eps: float) -> Tensor:
    """Layer norm (Ba et al., 2016) of x + dropout(y, p), over the last dimension; x and y have one shape, (..., C)."""
    is_supported = p < 1.0 and x.shape == y.shape
    if is_supported and weight is not None and bias is not None and takes("residual_norm", x, y, weight, bias):
        seed = torch.randint(2**62, (1,), device=x.device) if p > 0 else None
        return native_residual_norm(x, y, weight, bias, p, seed, eps)
    return F.layer_norm(x + (dropout(y, p) if p > 0 else y), x.shape[-1:], weight, bias, eps)


def native_residual_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, p: float, seed: Tensor | None, eps: float
) -> Tensor:
    """``torch.ops.lightconv.residual_norm``'s normalised rows, differentiable in all tensors."""
    if recorded(x, y, weight, bias):
        return _ResidualNorm.apply(x, y, weight, bias, p, seed, eps)[0]
    return torch.ops.lightconv.residual_norm(x, y, weight, bias, p, seed, eps)[0]


class _ResidualNorm(Function):
    """Layer norm of z = x + dropout(y). It saves z and the seed, and also returns z, for higher derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *rules: Any) -> tuple[Tensor, Tensor]:
        out, z, stats = torch.ops.lightconv.residual_norm(x, y, weight, bias, *rules)
        ctx.p, seed, ctx.eps = rules
        ctx.save_for_backward(z, weight, bias, stats, seed)
        ctx.set_materialize_grads(False)
        return out, z

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
        z, weight, bias, stats, seed = ctx.saved_tensors
        if grad is not None and grad_z is None and not recorded(grad, z, weight):
            operator = torch.ops.lightconv.residual_norm_backward
            grad_x, grad_y, grad_affine = operator(grad, z, weight, stats, ctx.p, seed)
            return grad_x, grad_y if ctx.p > 0 else grad_x, *grad_affine, None, None, None

        def norm(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return F.layer_norm(z, z.shape[-1:], weight, bias, ctx.eps)

        grad, need = torch.zeros_like(z) if grad is None else grad, (True, *ctx.needs_input_grad[2:4])
        grad_x, grad_weight, grad_bias = gradients_of(norm, (z, weight, bias), need, grad)
        grad_x = grad_x if grad_z is None else grad_x + grad_z
        grad_y = grad_x
        if ctx.p > 0:  # dropout of ones, added to zeros, gives the factors of the same mask
            ones, any_weight = torch.ones_like(z, dtype=stats.dtype), weight.detach().to(stats.dtype)
            arguments = torch.zeros_like(ones), ones, any_weight, any_weight, ctx.p, seed, 1.0
            grad_y = (grad_x * torch.ops.lightconv.residual_norm(*arguments)[1]).to(z.dtype)
        return grad_x, grad_y, grad_weight, grad_bias, None, None, None


def attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, p: float, *, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention (Vaswani et al., 2017) whose weights are dropped with probability p.

    Args:
        q: (B, H, T, R).
        k, v: (B, H, S, R).
        seen: broadcast to (B, H, T, S), bool, true where a query attends to a key; None for all keys. Or numbers of
            q's type to add to the logits; then every query must attend to at least one key.
        p: probability of dropout for the weights.
        need_weights: also return the weights.

    Returns:
        (B, H, T, R), and the weights (B, H, T, S) before dropout, in float32 or float64, or None. Both are zero for a
        query that attends to nothing.
    """
    # not inside a transform, since PyTorch's kernels have no forward-mode derivatives
    if not need_weights and not transformed() and (p == 0.0 or not takes("dropout", q)):
        # not cuDNN's kernels, which are compiled for each shape: training has dozens of shapes, validation hundreds
        with sdpa_kernel(READY_KERNELS) if q.is_cuda else nullcontext():
            if seen is None or seen.dtype != torch.bool:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=p), None
            blind = ~seen.any(dim=-1, keepdim=True)
            # PyTorch's kernels differ in their results for a query that attends to nothing
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | blind, dropout_p=p)
            return out.masked_fill(blind, 0), None
    # PyTorch computes attention in the same way if it has dropout and runs on a CPU
    logits = _wide(q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
    weights = masked_softmax(logits, seen)
    return dropout(weights, p).to(v.dtype) @ v, weights if need_weights else None


def _wide(x: Tensor) -> Tensor:
    """Return x in float64 if it is of that type, otherwise in float32."""
    return x if x.dtype == torch.float64 else x.float()


def masked_softmax(logits: Tensor, seen: Tensor | None) -> Tensor:
    """Return the weights of ``attention`` for logits (..., S) and its argument ``seen``, in float32 or float64."""
    wide = _wide(logits)
    if seen is None or seen.dtype != torch.bool:
        return torch.softmax(wide if seen is None else wide + seen, dim=-1)
    # not -inf: the softmax of a row of -inf is NaN, and so is its gradient
    lowest = torch.finfo(wide.dtype).min
    return torch.softmax(wide.masked_fill(~seen, lowest), dim=-1).masked_fill(~seen, 0)


def smoothed_nll(logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """Label-smoothed loss (Szegedy et al., 2016) in fairseq's form, summed over rows of logits.

    With s = smoothing / (V - 1): (1 - smoothing - s) * -log p(target) + s * sum over the vocabulary of -log p.

    Args:
        logits: (N, V), V > 1.
        target: (N,) int64, vocabulary entries.
        smoothing: the probability that is shared by the entries other than the target.
        ignore: rows with this target do not count.

    Returns:
        The loss, and the sum of -log p(target), which has no gradient; both of shape (), in float32 or float64.

    Raises:
        RuntimeError: a target outside 0..V-1, on a CPU. On a GPU it gives NaN.
    """
    share = smoothing / (logits.shape[1] - 1)
    shares = (1 - smoothing - share, share)
    return (_SmoothedNll.apply if takes("smoothed_nll", logits) else _smoothed_nll)(logits, target, shares, ignore)


def _smoothed_nll(logits: Tensor, target: Tensor, shares: tuple[float, float], ignore: int) -> tuple[Tensor, Tensor]:
    """Reference implementation of the loss; ``shares`` are the factors of its two sums."""
    wide = _wide(logits)
    # ignored rows are masked; to select the other rows, the host would wait for a GPU to count them
    ignored = (target == ignore).unsqueeze(1)
    log_p = torch.log_softmax(wide.masked_fill(ignored, 0), dim=-1).masked_fill(ignored, 0)
    nll = -log_p.gather(1, target.unsqueeze(1).masked_fill(ignored, 0)).sum()
    return shares[0] * nll - shares[1] * log_p.sum(), nll.detach()


class _SmoothedNll(Function):
    """The library's loss. Forward and backward move 3 * N * V * s bytes of a GPU's memory, for s bytes per logit."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, shares: tuple[float, float], ignore: int
    ) -> tuple[Tensor, Tensor]:
        sums, log_sums = torch.ops.lightconv.smoothed_nll(logits, target, ignore)
        ctx.save_for_backward(logits, target, log_sums)
        ctx.shares, ctx.ignore = shares, ignore
        nll, vocabulary_sum = sums.to(torch.promote_types(logits.dtype, torch.float32))
        ctx.mark_non_differentiable(nll)
        return shares[0] * nll + shares[1] * vocabulary_sum, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _grad_nll: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, log_sums = ctx.saved_tensors
        if recorded(grad, logits):

            def loss(logits: Tensor) -> Tensor:
                return _smoothed_nll(logits, target, ctx.shares, ctx.ignore)[0]

            return gradients_of(loss, (logits,), (True,), grad)[0], None, None, None
        operator = torch.ops.lightconv.smoothed_nll_backward
        return operator(grad, logits, target, log_sums, *ctx.shares, ctx.ignore), None, None, None
