"""A decoder's past inputs as a window that each step copies: the state of the reference's steps.

State: inputs (t, B, C), the last t < K inputs, oldest first. Runs on any device, and gradients flow through it.
"""

import torch
from torch import Tensor

from lightconv_plugin.ops import reference

State = dict[str, Tensor]


def push(x: Tensor, state: State | None, size: int | None) -> tuple[Tensor, State]:
    """Append an input (1, B, C): the window (t, B, C) of the last t <= size, and the state for the next step.

    Args:
        x: the newest input.
        state: what the step before gave; None before the first.
        size: how many inputs a step sees; None for all.
    """
    window = x if state is None else torch.cat([state["inputs"], x])
    # the next step needs one less than the window holds then
    return window, {"inputs": window if size is None else window[max(0, len(window) - size + 1) :]}


def conv_step(
    x: Tensor, weight: Tensor, state: State | None, *, normalization: str = "softmax"
) -> tuple[Tensor, State]:
    """One position: x (1, B, C) and logits (H, K) or (1, B, H, K) give (1, B, C) and the state for the next."""
    window, state = push(x, state, weight.shape[-1])
    return reference.conv_step(window, weight, normalization=normalization), state


def rows(state: State) -> int:
    """Return how many hypotheses a state holds."""
    return state["inputs"].shape[1]


def reorder(state: State, new_order: Tensor) -> State:
    """The state in which hypothesis b continues what new_order[b] has read; there may be fewer or more than before."""
    return {name: value.index_select(1, new_order) for name, value in state.items()}
