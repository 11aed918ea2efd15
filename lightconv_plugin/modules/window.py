"""The past that a causal module keeps while a decoder takes one position at a time."""

import copy
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightconv_plugin import ops

IncrementalState = dict[str, dict[str, Tensor | None]]


def check_width(kernel_size: int, *, causal: bool) -> None:
    """Refuse a kernel that cannot be laid over a sequence.

    Raises:
        ValueError: it has no weights, or is even and not causal.
    """
    if kernel_size < 1:
        raise ValueError(f"a kernel of {kernel_size} weights was asked for; expected 1 or more")
    if not causal and kernel_size % 2 == 0:
        raise ValueError(
            f'kernel size {kernel_size} is even, so "same" padding has no middle; '
            "choose an odd size for the encoder (3, 7, 15, 31 in the paper)"
        )


def check_heads(channels: int, heads: int) -> None:
    """Refuse heads that do not share the channels out evenly.

    Raises:
        ValueError: they do not.
    """
    if not 0 < heads <= channels or channels % heads:
        raise ValueError(f"{heads} heads do not divide {channels} channels; choose a divisor of {channels}")


class OwnEntry:
    """Gives a module an entry of its own in a decoder's state, the dictionary that fairseq calls incremental state."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owner = str(uuid.uuid4())

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnEntry":
        """Return a module with an entry of its own; one that was pickled keeps the entry in the state beside it."""
        memo[id(self)] = other = self.__new__(type(self))
        vars(other).update(copy.deepcopy(vars(self), memo), _owner=str(uuid.uuid4()))
        return other


class StepByStep(OwnEntry, nn.Module):
    """A module that decodes its newest positions, of which a call with a state gives one or more.

    Its entry in the state is a dict of tensors that have the hypotheses in dimension 1, as x (T, B, C) has: a search
    reorders them there. A module that is used twice in a step would share its entry: make two.

    Args:
        causal: a module that also looks to the right cannot decode step by step.
    """

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def get_incremental_state(self, incremental_state: IncrementalState) -> Any:
        """Return this module's entry; None before the first step."""
        return incremental_state.get(self._owner)

    def set_incremental_state(self, incremental_state: IncrementalState, value: Any) -> None:
        """Keep this module's entry for the next step."""
        incremental_state[self._owner] = value

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Hypothesis b continues what hypothesis new_order[b] has read so far."""
        saved = self.get_incremental_state(incremental_state)
        if saved is not None:
            self.set_incremental_state(incremental_state, ops.reorder_state(saved, new_order))

    def check_step(self, padding_mask: Tensor | None = None) -> None:
        """Refuse a module that is not causal, and padding that it would take for input."""
        if padding_mask is not None:
            raise ValueError(
                f"{type(self).__name__} decodes step by step without padding, and got a padding mask; "
                "decode prompts of one length together, or pad behind them"
            )
        if not self.causal:
            raise ValueError("incremental decoding takes a causal module; got causal=False")

    def each_position(self, step: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call ``step`` with each position (1, B, ...) of the inputs (T, B, ...) in turn; gives (T, B, C)."""
        positions = inputs[0].shape[0]
        if positions == 1:
            return step(*inputs)
        return torch.cat([step(*(each[t : t + 1] for each in inputs)) for t in range(positions)])

    def extra_repr(self) -> str:
        return f"causal={self.causal}"


class InputWindow(StepByStep):
    """A module that sees its last ``size`` inputs, or what it makes of each; a step appends one.

    Args:
        size: how many inputs a step sees, the newest included; None for all.
        causal: see ``StepByStep``.
    """

    def __init__(self, size: int | None, *, causal: bool) -> None:
        super().__init__(causal=causal)
        self.window_size = size

    def push(self, x: Tensor, incremental_state: IncrementalState) -> Tensor:
        """Append this step's input (1, B, C) to the ones kept; returns the window (t, B, C) of the last t <= size."""
        saved = self.get_incremental_state(incremental_state)
        window, kept = ops.push(x, saved, self.window_size)
        self.set_incremental_state(incremental_state, kept)
        return window

    def extra_repr(self) -> str:
        return f"window={self.window_size}, {super().extra_repr()}"
