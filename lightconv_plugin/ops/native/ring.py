"""A decoder's past inputs in a ring that never moves; beam search re-indexes a table of who descends from whom.

State, of N hypotheses:
    ring: (K, M, C), M >= N; position p lies in slot p % K. K slots, so that none is read and written in one step.
    ancestors: (K, N) int32, the row of each slot that holds hypothesis n's input.
    position: (1,) int64 on the tensors' device, how many inputs there were.

A step changes ring, ancestors and position in place: a state serves one line of decoding.
"""

import torch
from torch import Tensor

from lightconv_plugin.ops import native
from lightconv_plugin.ops.normalization import prepare_kernel

State = dict[str, Tensor]


def conv_step(
    x: Tensor, weight: Tensor, state: State | None, *, normalization: str = "softmax"
) -> tuple[Tensor, State]:
    """One position: x (1, N, C) and logits (H, K) or (1, N, H, K) give (1, N, C) and the state for the next.

    Raises:
        ValueError: what ``native.unsupported_reason`` says, or an unknown normalisation.
    """
    native.require("conv_step", x, weight)
    if state is None:
        state = _empty(x, weight.shape[-1])
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    out = torch.ops.lightconv.conv_step(x, weight, state["ring"], state["ancestors"], state["position"], softmax)
    return out, state


def rows(state: State) -> int:
    """Return how many hypotheses a state holds."""
    return state["ancestors"].shape[1]


def reorder(state: State, new_order: Tensor) -> State:
    """The state in which hypothesis n continues what new_order[n] has read; there may be fewer or more than before."""
    ring = state["ring"]
    # not index_select, which on a CPU takes three times as long
    ancestors = state["ancestors"].gather(1, new_order.long().expand(len(ring), -1))
    if len(new_order) <= ring.shape[1]:
        return {**state, "ancestors": ancestors}
    # more hypotheses than the ring has rows: each gets a row of its own, which holds its past
    slots = torch.arange(len(ring), device=ring.device).unsqueeze(1)
    ring = ring[slots, ancestors.long()]
    own = torch.arange(len(new_order), dtype=torch.int32, device=ring.device).repeat(len(ring), 1)
    return {**state, "ring": ring, "ancestors": own}


def _empty(x: Tensor, width: int) -> State:
    _, rows, channels = x.shape
    return {
        "ring": x.new_empty(width, rows, channels),
        "ancestors": torch.zeros(width, rows, dtype=torch.int32, device=x.device),
        "position": torch.zeros(1, dtype=torch.int64, device=x.device),
    }
