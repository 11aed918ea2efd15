"""State of causal modules in incremental decoding, and checks that the modules share."""

import codecs
import copy
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.ops.checks import check_whole, describe

# A decoder's state: one entry for each module that has a state. Each module has its own key, see ``StateKey``.
IncrementalState = dict[Any, Any]


def check_width(kernel_size: int, *, causal: bool) -> None:
    """Check the width of a kernel.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is below 1, or even and not causal.
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
    """Check that the number of heads divides the number of channels.

    Raises:
        TypeError: a number is not whole.
        ValueError: it does not divide it, or there are no channels.
    """
    check_whole("channels", channels)
    check_whole("heads", heads)
    if channels < 1:
        raise ValueError(f"{channels} channels were asked for; expected 1 or more")
    if not 0 < heads <= channels or channels % heads:
        raise ValueError(f"{heads} heads do not divide {channels} channels; choose a divisor of {channels}")


def check_state(module: object, incremental_state: Any) -> None:
    """Check that an incremental state is a dictionary, or None.

    Raises:
        TypeError: it is anything else, such as the state of a whole sequence.
    """
    if incremental_state is not None and not isinstance(incremental_state, dict):
        raise TypeError(
            f"{type(module).__name__}: incremental_state is a dict, empty before the first step; got "
            f"{describe(incremental_state)}. A state of whole sequences is passed as initial_state=..."
        )


def check_call(module: object, channels: int, x: Any, padding_mask: Any, incremental_state: Any) -> None:
    """Check the arguments of a mixer: x (T, B, channels), its padding mask (B, T), and a decoder's state.

    Raises:
        ValueError: x or the mask has a wrong shape or type.
        TypeError: the state is not a dict.
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
    """Key of a module's entry in a decoder's state. A key is only equal to itself.

    In a pickled or saved state the key is replaced by its name, as bytes, which ``torch.load(weights_only=True)`` can
    read. The module also finds an entry by that name, so a state can be used in another process.
    """

    def __init__(self, name: bytes | None = None) -> None:
        self.name = uuid.uuid4().hex.encode() if name is None else name

    def __deepcopy__(self, memo: dict[int, Any]) -> "StateKey":
        """Return the key itself, so that a copied state works with the same module."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return codecs.encode, (self.name.decode(), "latin1")  # as pickle writes bytes that every protocol can hold


class OwnEntry:
    """Mix-in that gives a module its own entry in a decoder's state, which fairseq calls the incremental state."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._state_key = StateKey()

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnEntry":
        """Return a module with a new key. A state that is copied together with the module works with the copy."""
        copied = self.__new__(type(self))
        memo |= {id(self): copied, id(self._state_key): StateKey()}
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give an unpickled module, or a shallow copy, a new key.

        The key of an unpickled module keeps its name, under which a pickled state has the module's entry.
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
        """Store this module's entry for the next step."""
        incremental_state[self._state_key] = entry

    def drop_incremental_state(self, incremental_state: IncrementalState) -> None:
        """Remove this module's entry, as before the first step."""
        incremental_state.pop(self._state_key, None)


class StepByStep(OwnEntry, nn.Module):
    """A module that can decode incrementally: a call with a state passes one or more new positions.

    Its entry in the state is a dict of tensors with the hypotheses in dimension 1, as in x (T, B, C), where a search
    reorders them. A module has one entry, so it must not be used twice in a step: make two modules.

    Args:
        causal: True if a position sees no positions to its right. Other modules cannot decode incrementally.
    """

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the beams: hypothesis b gets the history of hypothesis new_order[b]."""
        saved = self.get_incremental_state(incremental_state)
        if saved is not None:
            self.set_incremental_state(incremental_state, ops.reorder_state(saved, new_order))

    def check_step(self, padding_mask: Tensor | None = None) -> None:
        """Check that the module can decode a step.

        Raises:
            ValueError: there is a padding mask, or the module is not causal.
        """
        if padding_mask is not None:
            raise ValueError(
                f"{type(self).__name__} decodes step by step without padding, and got a padding mask; "
                "decode prompts of one length together, or pad them at the end"
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
    """A module that sees its last ``size`` inputs, or features of them. Each step appends one.

    Args:
        size: the number of inputs that a step sees, including the newest; None for all.
        causal: see ``StepByStep``.
    """

    def __init__(self, size: int | None, *, causal: bool) -> None:
        super().__init__(causal=causal)
        self.window_size = size

    def push(self, x: Tensor, incremental_state: IncrementalState) -> Tensor:
        """Append this step's input (1, B, C) to the state. Return the window (t, B, C) of the last t <= size inputs."""
        saved = self.get_incremental_state(incremental_state)
        window, saved = ops.push(x, saved, self.window_size)
        self.set_incremental_state(incremental_state, saved)
        return window

    def extra_repr(self) -> str:
        return f"window={self.window_size}, {super().extra_repr()}"
