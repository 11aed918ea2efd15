"""The short convolution of flash-linear-attention under its signature, for any width, on CPUs and GPUs."""

from typing import Any

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.ops.api import check_tensors
from lightconv_plugin.ops.sequences import final_state


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    backend: str | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """A causal convolution with a kernel a channel: act(conv(x) + bias) + residual.

    Computed by ``ops.light_conv``, which is asked for all of it.

    Args:
        x: (B, T, D); (1, total, D) with ``cu_seqlens``. D may be several dimensions.
        weight: (D, W), the weight of the newest input last; used as it is.
        bias: (D,).
        residual: as x.
        initial_state: (N, D, W), the W inputs before each sentence; the oldest is not read.
        output_final_state: also return the last W inputs (N, D, W).
        activation: None, "silu" or "swish", which are the same.
        cu_seqlens: (N + 1,) offsets of N packed sentences; see ``ops.light_conv``.
        backend, cu_seqlens_cpu, chunk_indices: not used: they choose or speed up FLA's kernels.
        cp_context: None.

    Returns:
        The output, as x, and the final state or None.

    Raises:
        ValueError: shapes that do not fit, another activation, a context for several GPUs, packed sentences in several
            rows, or what ``ops.light_conv`` refuses.
        TypeError: what should be a tensor is none.
    """
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        raise TypeError(
            "causal_conv1d: expected tensors x (B, T, D) and weight (D, W); "
            f"got {type(x).__name__} and {type(weight).__name__}"
        )
    check_tensors("causal_conv1d", residual=residual, initial_state=initial_state, cu_seqlens=cu_seqlens)
    if x.ndim < 3 or weight.ndim != 2 or len(weight) != x.shape[2:].numel():
        raise ValueError(
            f"causal_conv1d: expected x (B, T, D) and weight (D, W); got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if cp_context is not None:
        raise ValueError("causal_conv1d: sequences spread over several GPUs (cp_context) are not supported")
    if cu_seqlens is not None and len(x) != 1:
        raise ValueError(f"causal_conv1d: packed sentences are expected as (1, total, D); got {tuple(x.shape)}")
    (channels, width), sentences = weight.shape, len(x if cu_seqlens is None else cu_seqlens[1:])
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"causal_conv1d: residual is expected as x, {tuple(x.shape)}; got {tuple(residual.shape)}")
    if initial_state is not None and initial_state.shape != (sentences, channels, width):
        raise ValueError(
            f"causal_conv1d: initial_state is expected as (N, D, W) = {(sentences, channels, width)}; "
            f"got {tuple(initial_state.shape)}"
        )
    state = None if initial_state is None else initial_state.movedim(-1, 0)  # (W, N, D)

    def rows(given: Tensor) -> Tensor:
        """As ``ops.light_conv`` takes it: (total, D) or (T, B, D)."""
        return given.flatten(2).transpose(0, 1) if cu_seqlens is None else given.flatten(2).squeeze(0)

    out = ops.light_conv(
        rows(x),
        weight,
        padding_l=width - 1,
        normalization="none",
        initial_state=None if state is None else state[1:],
        cu_seqlens=cu_seqlens,
        bias=bias,
        activation=activation,
        residual=None if residual is None else rows(residual),
    )
    out = (out.unsqueeze(0) if cu_seqlens is not None else out.transpose(0, 1)).reshape(x.shape)
    if not output_final_state:
        return out, None
    last = final_state(x.flatten(2).transpose(0, 1), width + 1, cu_seqlens, state)
    return out, last.movedim(0, -1).clone(memory_format=torch.contiguous_format)
