"""The operators of the paper in plain PyTorch: the definition that every other backend is tested against.

Shapes: x is (T, B, C); a kernel has K weights, one kernel a head, H heads; the C channels fall into H groups of
R = C / H neighbours that share their head's kernel (section 3). For a position i and a channel c of head h

    out[i, b, c] = sum over j = 0..K-1 of  w[.., h, j] * x[i + j - padding_l, b, c]

where x is zero outside 0..T-1. ``padding_l = K - 1`` is the causal convolution of a decoder, ``K // 2`` the "same"
convolution of an encoder. In LightConv w is one (H, K) table for all positions; in DynamicConv each position has its
own, w: (T, B, H, K), predicted from x[i] (section 4).

Three decisions that the paper leaves open:

* The kernel is normalised over all its K weights, also where the sequence is shorter than the kernel, so that the
  weights that fall on the padding take their share. One step of decoding with t < K inputs so far therefore
  normalises all K logits first and then uses the last t.
* DropConnect (section 3) drops normalised weights, independently for every position, sentence and head, LightConv's
  shared kernel included: a position sees its own thinned copy. This follows the code behind the published results and
  departs from the paper's text, which drops entries of softmax(W): of LightConv's one kernel, for all positions and
  sentences. ``modules.LightweightConv`` does that with dropconnect_per="kernel".
* Weights are normalised in float32 when x is float16 or bfloat16, and then cast to x's type.

This module imports torch alone and runs on any device.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv_plugin.ops.normalization import normalize_kernel

# Positions that one band matrix covers. A longer sequence is cut, so that memory grows with T and not with T * T.
TIME_BLOCK = 128


def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, normalization: str = "softmax", dropconnect: float = 0.0
) -> Tensor:
    """LightConv over a whole sequence (section 3).

    Args:
        x: (T, B, C), any floating type, any strides.
        weight: (H, K) logits; H divides C.
        padding_l: zeros before the first position, 0..K-1; K-1-padding_l follow the last.
        normalization: how kernels are normalised over K, one of ``NORMALIZATIONS``.
        dropconnect: probability with which a normalised weight is dropped; 0 outside training.

    Returns:
        (T, B, C) of x's type.
    """
    time, batch, channels = x.shape
    heads, width = weight.shape
    kernel = normalize_kernel(weight, normalization)
    if dropconnect > 0.0:
        per_position = F.dropout(kernel.expand(time, batch, heads, width), dropconnect)
        return dynamic_conv(x, per_position, padding_l=padding_l, normalization="none")
    # (T, B, H, R) -> (H, T, B * R): one band matrix a head serves all sentences
    size = channels // heads
    folded = x.reshape(time, batch, heads, size).permute(2, 0, 1, 3).reshape(heads, time, batch * size)
    # expanded before it is rounded, so that its gradient is summed over the positions in float32
    rows = kernel.unsqueeze(1).expand(heads, time, width).to(x.dtype)
    out = _band_matmul(folded, rows, padding_l)
    return out.reshape(heads, time, batch, size).permute(1, 2, 0, 3).reshape(time, batch, channels)


def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, normalization: str = "softmax", dropconnect: float = 0.0
) -> Tensor:
    """DynamicConv over a whole sequence, given the predicted kernels (section 4).

    Args:
        x: (T, B, C), any floating type, any strides.
        weight: (T, B, H, K) logits, one kernel a position and head; H divides C.
        padding_l, normalization, dropconnect: as for ``light_conv``.

    Returns:
        (T, B, C) of x's type.
    """
    time, batch, channels = x.shape
    heads, width = weight.shape[2:]
    kernel = normalize_kernel(weight, normalization)
    if dropconnect > 0.0:
        kernel = F.dropout(kernel, dropconnect)
    rows = kernel.to(x.dtype).reshape(time, batch * heads, width).transpose(0, 1)
    folded = x.reshape(time, batch * heads, channels // heads).transpose(0, 1)
    return _band_matmul(folded, rows, padding_l).transpose(0, 1).reshape(time, batch, channels)


def conv_step(window: Tensor, weight: Tensor, *, normalization: str = "softmax") -> Tensor:
    """Either convolution at one position of a decoder.

    Args:
        window: (t, B, C), the last t <= K inputs, the current one last.
        weight: logits: LightConv's (H, K), or DynamicConv's (1, B, H, K) of the current position.

    Returns:
        (1, B, C): what ``light_conv`` or ``dynamic_conv`` with padding_l = K - 1 gives at this position.
    """
    inputs, batch, channels = window.shape
    heads, width = weight.shape[-2:]
    kernel = normalize_kernel(weight, normalization)[..., width - inputs :].to(window.dtype)
    kernel = kernel.expand(1, batch, heads, inputs)[0]
    values = window.reshape(inputs, batch, heads, channels // heads)
    return torch.einsum("bht,tbhr->bhr", kernel, values).to(window.dtype).reshape(1, batch, channels)


def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The gate in front of the convolution (section 3), zero at padding.

    Args:
        x: (T, B, 2C), values and then gates.
        padding_mask: (B, T), true where x is padding; None where nothing is.

    Returns:
        (T, B, C) of x's type.
    """
    out = F.glu(x, dim=-1)
    return out if padding_mask is None else out.masked_fill(padding_mask.t().unsqueeze(-1), 0)


def _band_matmul(x: Tensor, kernel: Tensor, padding_l: int) -> Tensor:
    """Convolve x: (N, T, R) with a kernel of its own at each position, (N, T, K); returns (N, T, R).

    Row i of a band matrix holds position i's kernel, shifted i places to the right, so that one batched matrix
    product does the sums of a whole block of positions. An input that is infinite or NaN meets the zeros beside the
    band, too, and makes NaN of its channel in the whole block. (The native kernels keep it to the positions whose
    kernel reaches it. To sum tap by tap would too, and takes up to three times as long.)
    """
    time, width = x.shape[1], kernel.shape[2]
    padded = F.pad(x, (0, 0, padding_l, width - 1 - padding_l))
    if torch.compiler.is_exporting():  # into a graph for any length, whose blocks cannot be counted
        return torch.bmm(_shift_rows(kernel), padded).to(x.dtype)
    blocks = []
    for start in range(0, max(time, 1), TIME_BLOCK):  # no positions at all are one empty block
        size = min(TIME_BLOCK, time - start)
        band = _shift_rows(kernel[:, start : start + size])
        blocks.append(torch.bmm(band, padded[:, start : start + size + width - 1]))
    return (blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)).to(x.dtype)  # autocast multiplies in its own


def _shift_rows(kernel: Tensor) -> Tensor:
    """(N, S, K) -> (N, S, S + K - 1), row i moved i places to the right, zeros elsewhere.

    Rows padded with S zeros and laid end to end have the period S + K; read with the period S + K - 1 instead, each
    row starts one place later than the row before.
    """
    count, size, width = kernel.shape
    flat = F.pad(kernel, (0, size)).reshape(count, size * (size + width))
    return flat[:, : size * (size + width - 1)].reshape(count, size, size + width - 1)
