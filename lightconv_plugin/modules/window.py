"""The past that a causal module keeps while a decoder takes one position at a time."""

import codecs
import copy
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.ops.checks import check_whole, describe

# A decoder's state: one entry for each module that keeps something. The keys are the modules' own, see ``StateKey``.
IncrementalState = dict[Any, Any]


def check_width(kernel_size: int, *, causal: bool) -> None:
    """Check that a kernel can be laid over a sequence.

    Raises:
        TypeError: its size is no whole number.
        ValueError: it has no weights, or is even and not causal.
    """
    check_whole("kernel_size", kernel_size)
    if kernel_size < 1:
        raise ValueError(f"a kernel of {kernel_size} weights was asked for; expected 1 or more")
    if not causal and kernel_size % 2 == 0:
        raise ValueError(
            f'kernel size {kernel_size} is even, so "same" padding has no middle; '
            "choose an odd size for the encoder (3, 7, 15, 31 in the paper)"
        )


def check_heads(channels: int, heads: int) -> None:
    """Check that heads share the channels out evenly.

    Raises:
        TypeError: a number is not whole.
        ValueError: they do not, or there are no channels.
    """
    check_whole("channels", channels)
    check_whole("heads", heads)
    if channels < 1:
        raise ValueError(f"{channels} channels were asked for; expected 1 or more")
    if not 0 < heads <= channels or channels % heads:
        raise ValueError(f"{heads} heads do not divide {channels} channels; choose a divisor of {channels}")


def check_state(module: object, incremental_state: Any) -> None:
    """Check that an incremental state is the dictionary that steps keep their past in.

    Raises:
        TypeError: it is anything else, such as the state of whole sequences.
    """
    if incremental_state is not None and not isinstance(incremental_state, dict):
        raise TypeError(
            f"{type(module).__name__}: incremental_state is a dict, empty before the first step; got "
            f"{describe(incremental_state)}. A state of whole sequences is passed as initial_state=..."
        )


def check_call(module: object, channels: int, x: Any, padding_mask: Any, incremental_state: Any) -> None:
    """Check what a mixer is called with: x (T, B, channels), its padding mask (B, T), and a decoder's state.

    Raises:
        ValueError: another shape or type of x or the mask.
        TypeError: the state is no dict.
    """
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.ndim != 3 or x.shape[2] != channels:
        raise ValueError(f"{type(module).__name__}: x is expected as (T, B, {channels}), dense; got {describe(x)}")
    if padding_mask is not None and (
        not isinstance(padding_mask, Tensor)
        or padding_mask.dtype != torch.bool
        or padding_mask.shape != (x.shape[1], x.shape[0])
    ):
        raise ValueError(
            f"{type(module).__name__}: padding_mask is expected as (B, T) = {(x.shape[1], x.shape[0])}, torch.bool, "
            f"true at padding; got {describe(padding_mask)}"
        )
    check_state(module, incremental_state)


class StateKey:
    """Key of a module's entry in a decoder's state. It is equal to itself alone.

    A state that is pickled or saved has the key's name, as bytes, in its place: ``torch.load(weights_only=True)`` reads
    it. The module takes over an entry under its name, so the state goes on in another process, too.
    """

    def __init__(self, name: bytes | None = None) -> None:
        self.name = uuid.uuid4().hex.encode() if name is None else name

    def __deepcopy__(self, memo: dict[int, Any]) -> "StateKey":
        """Return the key itself: a copied state goes on with the same module."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return codecs.encode, (self.name.decode(), "latin1")  # as pickle writes bytes that every protocol can hold


class OwnEntry:
    """Gives a module an entry of its own in a decoder's state, the dictionary that fairseq calls incremental state."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._state_key = StateKey()

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnEntry":
        """Return a module with a key of its own. A state that is copied along with the module goes on with the copy."""
        copied = self.__new__(type(self))
        memo |= {id(self): copied, id(self._state_key): StateKey()}
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give an unpickled module, or a shallow copy, a key of its own.

        An unpickled module keeps the name, under which a state that was pickled with it, or apart, has its entry.
        """
        super().__setstate__(state)  # type: ignore[misc]  # of nn.Module
        key = self._state_key
        self._state_key = StateKey() if isinstance(key, StateKey) else StateKey(key)

    def get_incremental_state(self, incremental_state: IncrementalState) -> Any:
        """Return this module's entry; None before the first step."""
        key = self._state_key
        entry = incremental_state.get(key)
        if entry is None and key.name in incremental_state:  # the state was pickled
            entry = incremental_state[key] = incremental_state.pop(key.name)
        return entry

    def set_incremental_state(self, incremental_state: IncrementalState, entry: Any) -> None:
        """Keep this module's entry for the next step."""
        incremental_state[self._state_key] = entry


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
        """Call ``step``, which gives (1, B, C), with each position (1, B, ...) of the inputs (T, B, ...) in turn.

        Returns:
            (T, B, C); where T is 0, the first input.
        """
        positions = inputs[0].shape[0]
        if positions == 0:
            return inputs[0]
        if positions == 1:
            return step(*inputs)
        return torch.cat([step(*(x[t : t + 1] for x in inputs)) for t in range(positions)])

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
