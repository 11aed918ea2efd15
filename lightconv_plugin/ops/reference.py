"""The operators of the paper in plain PyTorch: the reference implementation that every backend is tested against.

Shapes: x is (T, B, C). There are H heads, each with a kernel of K weights. The C channels are split into H groups of
R = C / H neighbours, which share the kernel of their head (section 3). For a position i and a channel c of head h

    out[i, b, c] = sum over j = 0..K-1 of  w[.., h, j] * x[i + j - padding_l, b, c]

where w is normalised over its K weights, by a softmax unless another normalisation is chosen, and x is zero outside
0..T-1; an initial state replaces the zeros before position 0. ``padding_l = K - 1`` is the causal convolution of a
decoder, ``K // 2`` the "same" convolution of an encoder. In LightConv one table w (H, K) serves all positions. In
DynamicConv each position has its own kernels, w: (T, B, H, K). Their logits come from a linear layer without bias, with
the weight W: (H, K, C), which is in ``modules.DynamicConv`` (section 4):

    w[i, b, h, j] = softmax over j of (sum over c of  W[h, j, c] * x[i, b, c])

Three decisions that the paper leaves open:

* The kernel is normalised over all its K weights, also where some of them fall on the padding. A step of decoding with
  t < K inputs so far therefore normalises all K logits and then uses the last t weights.
* DropConnect (section 3) drops normalised weights. Each position, sentence and head draws its own mask, in LightConv
  too, although its positions share a kernel. This follows the code behind the published results. In the paper's text,
  LightConv applies one mask to a head's kernel at all positions and in all sentences; ``modules.LightweightConv`` does
  so with dropconnect_per="kernel".
* When x is float16 or bfloat16, weights are normalised and products summed in float32, and the sum is rounded to x's
  type.

This module runs on any device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv_plugin.ops.normalization import Normalization, normalize_kernel


def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    initial_state: Tensor | None = None,
) -> Tensor:
    """LightConv over a whole sequence (section 3).

    Args:
        x: (T, B, C), any floating type, any strides.
        weight: (H, K) logits; H divides C.
        padding_l: number of zeros before the first position, 0..K-1; K-1-padding_l zeros follow the last position.
        normalization: the normalisation of kernels over K, a name in ``NORMALIZATIONS``.
        dropconnect: probability with which a normalised weight is dropped; 0 outside training.
        initial_state: (padding_l, B, C), the inputs before the first position, in place of zeros.

    Returns:
        (T, B, C) of x's type.
    """
    kernel = normalize_kernel(weight, normalization)
    if dropconnect > 0.0:
        kernel = F.dropout(kernel.expand(*x.shape[:2], *weight.shape), dropconnect)
    return _sum_of_taps(x, kernel, padding_l, initial_state)


def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    initial_state: Tensor | None = None,
) -> Tensor:
    """DynamicConv over a whole sequence, given the predicted kernels (section 4).

    Args:
        x: (T, B, C), any floating type, any strides.
        weight: (T, B, H, K) logits, one kernel per position and head; H divides C.
        padding_l, normalization, dropconnect, initial_state: as for ``light_conv``.

    Returns:
        (T, B, C) of x's type.
    """
    kernel = normalize_kernel(weight, normalization)
    if dropconnect > 0.0:
        kernel = F.dropout(kernel, dropconnect)
    return _sum_of_taps(x, kernel, padding_l, initial_state)


def epilogue(out: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None) -> Tensor:
    """Return act(out + bias) + residual. Each operation rounds its result to its type, also for 16-bit types.

    Args:
        out: (..., C), the result of a convolution.
        bias: (C,).
        activation: None, or "silu" or "swish", two names of z * sigmoid(z).
        residual: of out's shape.

    Returns:
        A tensor of out's type.
    """
    dtype = out.dtype
    out = out if bias is None else out + bias
    out = out if activation is None else F.silu(out)
    out = out if residual is None else out + residual
    return out if out.dtype == dtype else out.to(dtype)


def final_state(x: Tensor, width: int, initial_state: Tensor | None = None) -> Tensor:
    """Return the last K - 1 inputs (K - 1, B, C). If T < K - 1, the first are from ``initial_state``, or zeros."""
    if initial_state is None:
        initial_state = x.new_zeros(width - 1, *x.shape[1:])
    return torch.cat([initial_state, x])[x.shape[0] :]  # len() would fix the length of a recorded program


def conv_step(window: Tensor, weight: Tensor, *, normalization: Normalization = "softmax") -> Tensor:
    """LightConv or DynamicConv at one position of a decoder.

    Args:
        window: (t, B, C), the last t <= K inputs, the current one last.
        weight: logits: LightConv's (H, K), or DynamicConv's (1, B, H, K) of the current position.

    Returns:
        (1, B, C), as ``light_conv`` or ``dynamic_conv`` with padding_l = K - 1 gives at this position.
    """
    inputs, batch, channels = window.shape
    heads, width = weight.shape[-2:]
    values = _for_sums(window.reshape(inputs, batch, heads, channels // heads))
    kernel = normalize_kernel(weight, normalization)[..., width - inputs :].to(values.dtype)
    kernel = kernel.expand(1, batch, heads, inputs)[0]
    return torch.einsum("bht,tbhr->bhr", kernel, values).to(window.dtype).reshape(1, batch, channels)


def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Apply the gated linear unit before the convolution (section 3), and set padding to zero.

    Args:
        x: (T, B, 2C), values and then gates.
        padding_mask: (B, T), true at padding; None if there is no padding.

    Returns:
        (T, B, C) of x's type.
    """
    out = F.glu(x, dim=-1)
    return out if padding_mask is None else out.masked_fill(padding_mask.t().unsqueeze(-1), 0)


def _sum_of_taps(x: Tensor, kernel: Tensor, padding_l: int, initial_state: Tensor | None) -> Tensor:
    """Compute the equation above for x (T, B, C) and normalised kernels (..., H, K), which broadcast to (T, B, H, K).

    The sum runs tap by tap. An infinite or NaN input affects only the positions whose kernel covers it.
    """
    time, width = x.shape[0], kernel.shape[-1]
    padded = F.pad(_for_sums(x), (0, 0, 0, 0, padding_l, width - 1 - padding_l))
    if initial_state is not None:
        padded = torch.cat([_for_sums(initial_state), padded[padding_l:]])
    padded = padded.unflatten(-1, (kernel.shape[-2], -1))
    kernel = kernel.to(padded.dtype)
    out = kernel[..., :1] * padded[:time]
    for j in range(1, width):
        out = torch.addcmul(out, kernel[..., j : j + 1], padded[j : j + time])
    return out.flatten(-2).to(x.dtype)


def _for_sums(x: Tensor) -> Tensor:
    """Return ``x`` in the type in which its products are summed."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
