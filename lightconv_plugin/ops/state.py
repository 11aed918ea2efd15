"""One step of decoding: both operators with the inputs so far as a state, which follows beam search.

The state is a dictionary of tensors, as fairseq's incremental state holds them. Its form is that of the backend chosen
at the first step, which then takes all that follow:

* of the definition, a window that each step copies. inputs: (t, B, C), the last t < K inputs, oldest first. Gradients
  flow through it.
* of the native code, a ring that never moves, in which a step writes in place; to reorder hypotheses changes a table.
    ring: (K, M, C), M >= N; position p lies in slot p % K. K slots, so that none is read and written in one step.
    ancestors: (K, N) int32, the row of each slot that holds hypothesis n's input.
    position: (1,) int64 on the tensors' device, how many inputs there were.
"""

import torch
from torch import Tensor

from lightconv_plugin.ops import reference
from lightconv_plugin.ops.api import check_operands
from lightconv_plugin.ops.backend import Backend, choose_backend, unsupported_reason
from lightconv_plugin.ops.normalization import Normalization, prepare_kernel

State = dict[str, Tensor]


def conv_step(
    x: Tensor,
    weight: Tensor,
    state: State | None,
    *,
    normalization: Normalization = "softmax",
    backend: Backend = "auto",
) -> tuple[Tensor, State]:
    """LightConv or DynamicConv at the newest position of a decoder, or at its newest T, one after the other.

    Args:
        x: (T, B, C), the newest inputs; mostly T = 1. With T = 0 nothing happens.
        weight: logits: LightConv's (H, K), or DynamicConv's (T, B, H, K) of these positions.
        state: the one that the previous step returned; None or empty before the first.
        normalization, backend: as for ``light_conv``. The backend that begins a state takes all its steps.

    Returns:
        (T, B, C), the result of the full sequence with padding_l = K - 1 at these positions, and the next step's state.
        The state that was passed is used up: copy it first (``copy.deepcopy``) to come back to it.

    Raises:
        ValueError: shapes that do not fit, a state of another kernel or of inputs of another size or type than x, one
            that the native backend began and cannot go on with, or an unknown normalisation or backend.
    """
    dynamic = isinstance(weight, Tensor) and weight.ndim == 4
    check_operands("conv_step", x, weight, dynamic)
    if x.shape[0] != 1:  # len() would warn where a program is recorded
        outs = [x[:0]]
        for t in range(x.shape[0]):
            kernel = weight[t : t + 1] if dynamic else weight
            out, state = conv_step(x[t : t + 1], kernel, state, normalization=normalization, backend=backend)
            outs.append(out)
        return torch.cat(outs), state or {}
    if state:
        native = "ring" in state
        _check_begun(state, x, weight)
    else:
        native = choose_backend("conv_step", backend, x, weight) == "native"
    if not native:
        window, state = push(x, state, weight.shape[-1])
        return reference.conv_step(window, weight, normalization=normalization), state
    state = state or _empty_ring(x, weight.shape[-1])
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    operands = x, weight.to(x.dtype), state["ring"], state["ancestors"], state["position"], softmax
    return torch.ops.lightconv.conv_step(*operands), state


def _check_begun(state: State, x: Tensor, weight: Tensor) -> None:
    """Check that a step of ``conv_step`` continues its state.

    Raises:
        ValueError: the state is of another kernel or other inputs, or its backend cannot take the step.
    """
    native, width = "ring" in state, weight.shape[-1]
    inputs = state["ring" if native else "inputs"]
    length, hypotheses = inputs.shape[0], (state["ancestors"] if native else inputs).shape[1]
    fits = length == width if native else length < width
    if not fits or (hypotheses, inputs.shape[2], inputs.dtype) != (*x.shape[1:], x.dtype):
        raise ValueError(
            f"conv_step: the state is of {hypotheses} hypotheses, {length} inputs each, of {inputs.shape[2]} "
            f"channels, {inputs.dtype}; got x {tuple(x.shape)}, {x.dtype}, and weight {tuple(weight.shape)}. "
            "Re-order the state when hypotheses come or go"
        )
    if native and (reason := unsupported_reason("conv_step", x, weight)):
        raise ValueError(
            f"conv_step: the native backend began this state and cannot take this step: {reason}. Take all steps of a "
            "state alike, or begin it with backend='reference'"
        )


def reorder_state(state: State, new_order: Tensor) -> State:
    """Reorder the beams: hypothesis b gets the history of new_order[b]. Their number may change.

    The state that was passed is used up: the new one may share its memory. Copy it first (``copy.deepcopy``) to order
    it twice.
    """
    if "ring" not in state:
        return {name: value.index_select(1, new_order) for name, value in state.items()}
    ring = state["ring"]
    # not index_select, which on a CPU takes three times as long
    ancestors = state["ancestors"].gather(1, new_order.long().expand(len(ring), -1))
    if len(new_order) <= ring.shape[1]:
        return {**state, "ancestors": ancestors}
    # more hypotheses than the ring has rows: each gets its own row, which holds its past
    slots = torch.arange(len(ring), device=ring.device).unsqueeze(1)
    ring = ring[slots, ancestors.long()]
    rows = torch.arange(len(new_order), dtype=torch.int32, device=ring.device).repeat(len(ring), 1)
    return {**state, "ring": ring, "ancestors": rows}


def push(x: Tensor, state: State | None, size: int | None) -> tuple[Tensor, State]:
    """Append an input (1, B, C) to a window: the last t <= size inputs (t, B, C), and the state for the next step.

    Args:
        x: the newest input.
        state: the one that the previous step returned; None or empty before the first.
        size: how many inputs a step sees; None for all.

    Raises:
        ValueError: the state is of other hypotheses or channels than x.
    """
    if state:
        check_held(state["inputs"], x)
        x = torch.cat([state["inputs"], x])
    # the next step needs one less than the window holds then; counted from the end, a recorded program takes any length
    kept = x if size is None else x[1 - size :] if size > 1 else x[:0]
    return x, {"inputs": kept}


def check_held(held: Tensor, x: Tensor) -> None:
    """Check that a tensor of a state, (any, B, C), has the hypotheses and channels of x (1, B, C).

    Raises:
        ValueError: it has not.
    """
    if held.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"the state is of {held.shape[1]} hypotheses with {held.shape[2]} numbers each; got x {tuple(x.shape)}. "
            "Re-order the state when hypotheses come or go"
        )


def _empty_ring(x: Tensor, width: int) -> State:
    _, rows, channels = x.shape
    return {
        "ring": x.new_empty(width, rows, channels),
        "ancestors": torch.zeros(width, rows, dtype=torch.int32, device=x.device),
        "position": torch.zeros(1, dtype=torch.int64, device=x.device),
    }
