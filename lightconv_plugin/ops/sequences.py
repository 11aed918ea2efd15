"""Convert layouts, states and packed sentences to sequences (T, B, C), which every backend supports.

The conversions are differentiable. Native code on a CPU takes packed sentences and states as they are; the reference
implementation takes states. In all other cases the inputs before a sentence (its state, or zeros) are put in front of
it, with kernels of ones, and the outputs at those positions are dropped:

    packed x      a a a b b          two sentences, a and b
    with gaps     . . a a a . . b b  each "." is a zero, or an input of the sentence's state
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
    """Run ``conv`` on sentences in any of the layouts of ``api.light_conv``.

    Args:
        conv: one of the two convolutions of a backend, with all its options except the offsets and the state.
        x, weight, padding_l: as for ``api.light_conv``.
        batch_first, return_state: as for ``api.light_conv``.
        offsets, state: its arguments ``cu_seqlens`` and ``initial_state``.
        native: True if ``conv`` is native code.

    Returns:
        The result in the layout of x, and the final state, or None without ``return_state``.
    """
    width, on_cpu = weight.shape[-1], native and x.is_cpu
    state = _transposed(state) if batch_first else state
    if offsets is not None:
        x, weight = x.unsqueeze(1), weight if weight.ndim == 2 else weight.unsqueeze(1)
        if on_cpu:
            out = conv(x, weight, offsets=offsets.long().contiguous(), initial_state=state).squeeze(1)
        else:
            out = convolve_packed(conv, x, weight, padding_l, offsets, state).squeeze(1)
    else:
        if batch_first:
            x, weight = _transposed(x), _transposed(weight)
        if on_cpu or not native or state is None:
            out = conv(x, weight, initial_state=state)
        else:
            out = _convolve_behind(conv, x, weight, state)
        out = _transposed(out) if batch_first else out
    if not return_state:
        return out, None
    if native and offsets is None and x.shape[0] >= width - 1:
        last = x[x.shape[0] - width + 1 :]
    else:
        last = final_state(x, width, offsets, state)
    return out, (_transposed(last) if batch_first else last).clone(memory_format=torch.contiguous_format)


def _transposed(x: Any) -> Any:
    """Exchange batch and time, the first two dimensions. Return None, and kernels of LightConv, without a change."""
    return x if x is None or x.ndim == 2 else x.transpose(0, 1)


def _convolve_behind(
    conv: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, initial_state: Tensor
) -> Tensor:
    """Convolve x (T, B, C) that follows a state (K - 1, B, C)."""
    length = initial_state.shape[0]
    if weight.ndim == 4:
        weight = F.pad(weight, (0, 0, 0, 0, 0, 0, length, 0), value=1.0)
    return conv(torch.cat([initial_state, x]), weight)[length:]


def convolve_packed(
    conv: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
) -> Tensor:
    """Convolve packed sentences (total, 1, C) as one sequence with gaps; see the module's picture.

    A gap is as long as the longer side of a kernel. The offsets stay on their device, so the host does not wait for a
    GPU. No size is compared with another, so a recorded program takes any number of sentences.
    """
    gap = max(padding_l, weight.shape[-1] - 1 - padding_l)
    offsets, rows = cu_seqlens.long(), torch.arange(x.shape[0], device=x.device)
    # for each row of the sequence with gaps: its sentence, its position counted from the start of that sentence's gap,
    # and, after the gap, its row in x
    gapped_rows = torch.arange(x.shape[0] + gap * (offsets.shape[0] - 1), device=x.device)
    gap_starts = offsets + gap * torch.arange(offsets.shape[0], device=x.device)
    sentence = torch.searchsorted(gap_starts, gapped_rows, right=True) - 1
    position = gapped_rows - gap_starts[sentence]
    row_in_x, in_gap = gapped_rows - gap * (sentence + 1), position < gap
    if initial_state is None:
        gapped = _select(x.new_zeros(1, *x.shape[1:]), x, in_gap, 0, row_in_x)
    else:
        state = initial_state.flatten(0, 1).unsqueeze(1)
        gapped = _select(state, x, in_gap, position * initial_state.shape[1] + sentence, row_in_x)
    if weight.ndim == 4:
        weight = _select(weight.new_ones(1, *weight.shape[1:]), weight, in_gap, 0, row_in_x)
    sentence_rows = rows + gap * torch.searchsorted(offsets, rows, right=True)
    return conv(gapped, weight).index_select(0, sentence_rows)


def final_state(x: Tensor, width: int, cu_seqlens: Tensor | None, initial_state: Tensor | None) -> Tensor:
    """Return the last K - 1 inputs (K - 1, B, C) of sentences x (T, B, C), or of packed sentences x (total, 1, C)."""
    if cu_seqlens is None:
        return reference.final_state(x, width, initial_state)
    length = width - 1
    if initial_state is None:
        initial_state = x.new_zeros(length, cu_seqlens.shape[0] - 1, x.shape[2])
    offsets, sentence = cu_seqlens.long(), torch.arange(initial_state.shape[1], device=x.device)
    rows = offsets[sentence + 1] - torch.arange(length, 0, -1, device=x.device).unsqueeze(1)
    position = rows - offsets[sentence]  # negative: an input of the sentence's initial state
    in_state = (position + length) * initial_state.shape[1] + sentence
    return _select(initial_state.flatten(0, 1), x.squeeze(1), position < 0, in_state, rows)


def _select(first: Tensor, second: Tensor, of_first: Tensor, index: Tensor | int, row: Tensor) -> Tensor:
    """Return rows of ``first`` by ``index`` where ``of_first`` is true, and rows of ``second`` by ``row`` elsewhere."""
    rows = torch.where(of_first, index, row + first.shape[0])
    return torch.cat([first, second]).index_select(0, rows.flatten()).view(*rows.shape, *first.shape[1:])
