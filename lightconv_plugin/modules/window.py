"""The past inputs that a causal module keeps while a decoder takes one position at a time."""

from typing import Any

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

IncrementalState = dict[str, dict[str, Tensor | None]]


class InputWindow(FairseqIncrementalState, nn.Module):
    """A module that sees its last ``size`` inputs: appends each new one and follows beam search.

    Args:
        size: how many inputs a step sees, the newest included; None for all.
        causal: a module that also looks to the right cannot decode step by step.
    """

    # of fairseq's mixin; nn.Module would declare them as Tensor or Module
    get_incremental_state: Any
    set_incremental_state: Any

    def __init__(self, size: int | None, *, causal: bool) -> None:
        super().__init__()
        self.window_size = size
        self.causal = causal

    def push(self, x: Tensor, incremental_state: IncrementalState) -> Tensor:
        """Append this step's input (1, B, C) to the ones kept; returns the window (t, B, C) of the last t <= size.

        Raises:
            ValueError: more than one position at once, or a module that also looks to the right.
        """
        if x.shape[0] != 1 or not self.causal:
            raise ValueError(
                f"incremental decoding takes one position at a time from a causal module; "
                f"got x {tuple(x.shape)}, causal={self.causal}"
            )
        saved = self.get_incremental_state(incremental_state, "window")
        window = x if saved is None else torch.cat([saved["inputs"], x])
        # the next step needs one less than the window holds then
        kept = window if self.window_size is None else window[max(0, len(window) - self.window_size + 1) :]
        self.set_incremental_state(incremental_state, "window", {"inputs": kept})
        return window

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Hypothesis b continues what hypothesis new_order[b] has read so far."""
        saved = self.get_incremental_state(incremental_state, "window")
        if saved is not None:
            inputs = saved["inputs"].index_select(1, new_order)
            self.set_incremental_state(incremental_state, "window", {"inputs": inputs})
