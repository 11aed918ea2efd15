"""Turn layouts, states and packed sentences into sequences (T, B, C), which every backend takes, differentiably.

Native code on a CPU reads packed sentences and states as they lie, and the definition takes states. Elsewhere the
inputs before a sentence (its state, or zeros) are put in front of it, kernels of ones in front of its own, and the
outputs there are left out.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv_plugin.ops import reference


def convolve(
    conv: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    *,
    batch_first: bool,
    offsets: Tensor | None,
    state: Tensor | None,
    return_state: bool,
    native: bool,
) -> tuple[Tensor, Tensor | None]:
    """Run ``conv`` on sentences that lie and begin as ``api.light_conv`` says. A state that is not asked for is None.

    The ``native`` one takes states and offsets of packed sentences on a CPU, the definition states alone.
    """
    width, on_cpu = weight.shape[-1], native and x.is_cpu
    state = _turned(state) if batch_first else state
    if offsets is not None:
        x, weight = x.unsqueeze(1), weight if weight.ndim == 2 else weight.unsqueeze(1)
        if on_cpu:
            out = conv(x, weight, offsets=offsets.long().contiguous(), initial_state=state).squeeze(1)
        else:
            out = convolve_packed(conv, x, weight, padding_l, offsets, state).squeeze(1)
    else:
        if batch_first:
            x, weight = _turned(x), _turned(weight)
        if on_cpu or not native or state is None:
            out = conv(x, weight, initial_state=state)
        else:
            out = _convolve_behind(conv, x, weight, state)
        out = _turned(out) if batch_first else out
    if not return_state:
        return out, None
    if native and offsets is None and x.shape[0] >= width - 1:
        last = x[x.shape[0] - width + 1 :]
    else:
        last = final_state(x, width, offsets, state)
    return out, (_turned(last) if batch_first else last).clone(memory_format=torch.contiguous_format)


def _turned(x: Any) -> Any:
    """Batch first to time first, or back; LightConv's kernels and None are neither."""
    return x if x is None or x.ndim == 2 else x.transpose(0, 1)


def _convolve_behind(
    conv: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, initial_state: Tensor
) -> Tensor:
    """x (T, B, C) behind a state (K - 1, B, C)."""
    before = initial_state.shape[0]
    if weight.ndim == 4:
        weight = F.pad(weight, (0, 0, 0, 0, 0, 0, before, 0), value=1.0)
    return conv(torch.cat([initial_state, x]), weight)[before:]


def convolve_packed(
    conv: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
) -> Tensor:
    """Packed sentences (total, 1, C), each behind as many positions as a kernel reaches: zeros, or its state.

    The offsets stay on their device, so that a GPU runs on.
    """
    gap = max(padding_l, weight.shape[-1] - 1 - padding_l)
    offsets, places = cu_seqlens.long(), torch.arange(x.shape[0], device=x.device)
    rows = places + gap * torch.searchsorted(offsets, places, right=True)
    longer = x.shape[0] + gap * (offsets.shape[0] - 1)
    spread = x.new_zeros(longer, *x.shape[1:]).index_copy(0, rows, x)
    if initial_state is not None:
        behind = offsets[:-1] + gap * torch.arange(offsets.shape[0] - 1, device=x.device)
        before = behind + torch.arange(gap, device=x.device).unsqueeze(1)
        spread = spread.index_copy(0, before.flatten(), initial_state.flatten(0, 1).unsqueeze(1))
    if weight.ndim == 4:
        weight = weight.new_ones(longer, *weight.shape[1:]).index_copy(0, rows, weight)
    return conv(spread, weight).index_select(0, rows)


def final_state(x: Tensor, width: int, cu_seqlens: Tensor | None, initial_state: Tensor | None) -> Tensor:
    """The last K - 1 inputs (K - 1, B, C) of sentences x (T, B, C), or, packed, (total, 1, C)."""
    if cu_seqlens is None:
        return reference.final_state(x, width, initial_state)
    before = width - 1
    if initial_state is None:
        initial_state = x.new_zeros(before, cu_seqlens.shape[0] - 1, x.shape[2])
    if x.shape[0] == 0:
        return initial_state
    rows = cu_seqlens[1:].long() - torch.arange(before, 0, -1, device=x.device).unsqueeze(1)
    ahead = rows - cu_seqlens[:-1]  # below 0: before the sentence's first, in its state
    places = (ahead + before).clamp(max=before - 1) * rows.shape[1] + torch.arange(rows.shape[1], device=x.device)
    own = x.squeeze(1).index_select(0, rows.clamp(min=0).flatten())
    return torch.where(
        (ahead < 0).unsqueeze(2),
        initial_state.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, rows.shape),
        own.unflatten(0, rows.shape),
    )
