"""Operators of training beside the convolutions: defined by PyTorch, faster where the native library takes it.

Each call with dropout or DropConnect draws a seed of its own from torch's generator, on the device of its input, so
that nothing waits and a captured CUDA graph draws anew at every replay. One draw for a whole update would save at most
4 microseconds a call, but no form of it keeps all results right:

* Seeds drawn at once and handed to the layers: ``torch.utils.checkpoint`` restores the generator before it computes a
  layer again, and nothing else. Where another batch went forward in between, the layer would use that batch's seed, and
  its gradient would be that of another mask. A layer that a model calls twice would drop the same numbers twice.
* Seeds counted up from the generator's seed and offset, which are read on the CPU: PyTorch forbids that while a graph
  is captured, and ``torch.compile`` cannot trace it.
"""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.auxiliary import autograd
from lightconv_plugin.ops.dispatch import takes

READY_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def glu_mask(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """The gate in front of the convolution: x (T, B, 2C) gives (T, B, C), zero where padding_mask (B, T) is true."""
    return (autograd if takes("glu_mask", x) else reference).glu_mask(x, padding_mask)


def dropout(x: Tensor, p: float) -> Tensor:
    """x with each number set to 0 with probability p, and else divided by 1 - p; any shape.

    PyTorch draws its masks on a CPU one number after the other; the native library draws them in parallel, from a seed
    that torch's generator gives.

    Raises:
        ValueError: p outside 0..1.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout: p is {p}; expected 0 <= p <= 1")
    if p in (0.0, 1.0) or not takes("dropout", x):
        return F.dropout(x, p)
    return autograd.dropout(x, p, torch.randint(2**62, (1,), device=x.device))


def residual_norm(x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, p: float, eps: float) -> Tensor:
    """Layer norm (Ba et al., 2016) of x + dropout(y, p), over the last dimension; x and y of one shape (..., C)."""
    whole = p < 1.0 and x.shape == y.shape
    if whole and weight is not None and bias is not None and takes("residual_norm", x, y, weight, bias):
        seed = torch.randint(2**62, (1,), device=x.device) if p > 0 else None
        return autograd.residual_norm(x, y, weight, bias, p, seed, eps)[0]
    return F.layer_norm(x + (dropout(y, p) if p > 0 else y), x.shape[-1:], weight, bias, eps)


def attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, p: float, *, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention (Vaswani et al., 2017) whose weights are dropped with probability p.

    Args:
        q: (B, H, T, R).
        k, v: (B, H, S, R).
        seen: broadcast to (B, H, T, S), true where a query sees a key; None: everywhere.

    Returns:
        (B, H, T, R), and, if needed, the weights (B, H, T, S) before any are dropped, in float32 or float64. Both are
        zero where a query sees nothing.
    """
    if not need_weights and (p == 0.0 or not takes("dropout", q)):
        # cuDNN's kernels are compiled anew for each shape, of which a training has dozens and its validation hundreds
        with sdpa_kernel(READY_KERNELS) if q.is_cuda else nullcontext():
            if seen is None:
                return F.scaled_dot_product_attention(q, k, v, dropout_p=p), None
            blind = ~seen.any(dim=-1, keepdim=True)
            # not left to PyTorch: what its kernels give for such a row differs
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | blind, dropout_p=p)
            return out.masked_fill(blind, 0), None
    # PyTorch does the same on a CPU where weights are dropped
    logits = _wide(q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
    weights = masked_softmax(logits, seen)
    return dropout(weights, p).to(v.dtype) @ v, weights if need_weights else None


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def masked_softmax(logits: Tensor, seen: Tensor | None) -> Tensor:
    """Attention's weights from its logits (..., S), zero where ``seen`` is false; in float32 or float64."""
    wide = _wide(logits)
    if seen is None:
        return torch.softmax(wide, dim=-1)
    # not -inf: a row of that alone is NaN, and its gradient too
    lowest = torch.finfo(wide.dtype).min
    return torch.softmax(wide.masked_fill(~seen, lowest), dim=-1).masked_fill(~seen, 0)


def smoothed_nll(logits: Tensor, target: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
    """The label-smoothed loss of rows of logits (Szegedy et al., 2016), as fairseq defines it, summed over the rows.

    With s = smoothing / (V - 1): (1 - smoothing - s) * -log p(target) + s * sum over all types of -log p.

    Args:
        logits: (N, V), V > 1.
        target: (N,) int64; rows whose target is ``ignore`` do not count.
        smoothing: the probability that goes to types other than the target.

    Returns:
        the loss, and the sum of -log p(target), which has no gradient; numbers, in float32 or float64.

    Raises:
        RuntimeError: a target outside 0..V-1, on a CPU. On a GPU it gives NaN.
    """
    if takes("smoothed_nll", logits):
        return autograd.smoothed_nll(logits, target, smoothing, ignore)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    # masked, not picked out: a GPU would be waited for, to learn how many rows there are
    ignored = (target == ignore).unsqueeze(1)
    log_p = torch.log_softmax(wide.masked_fill(ignored, 0), dim=-1).masked_fill(ignored, 0)
    nll = -log_p.gather(1, target.unsqueeze(1).masked_fill(ignored, 0)).sum()
    share = smoothing / (logits.shape[1] - 1)
    return (1 - smoothing - share) * nll - share * log_p.sum(), nll.detach()
