"""One step of decoding with either operator. A state, which beam search can reorder, holds the earlier inputs.

The state is a dictionary of tensors, as in fairseq's incremental state. Its form depends on the backend chosen at the
first step, which then runs all later steps:

* The reference implementation has a window, which each step copies. Gradients flow through it.
    inputs: (t, B, C), the last t < K inputs, oldest first.
* Native code has a ring buffer, into which a step writes in place. Reordering hypotheses only changes a table.
    ring: (K, M, C), M >= N; the input at position p is in slot p % K. With K slots no step reads the slot it writes.
    ancestors: (K, N) int32, for each slot the row of the ring that holds hypothesis n's input.
    position: (1,) int64 on the tensors' device, the number of inputs so far.
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
    """LightConv or DynamicConv at the newest T positions of a decoder.

    Args:
        x: (T, B, C), the newest inputs; usually T = 1. T = 0 changes nothing.
        weight: logits: LightConv's (H, K), or DynamicConv's (T, B, H, K) of these positions.
        state: the state that the previous step returned; None or empty before the first step.
        normalization, backend: as for ``light_conv``. The backend of the first step runs all later steps.

    Returns:
        (T, B, C), as the convolution of the full sequence with padding_l = K - 1 gives at these positions, and the
        state for the next step. The state that was passed must not be used again: copy it first (``copy.deepcopy``)
        to take other steps from it.

    Raises:
        ValueError: shapes that do not fit; a state of a kernel of another width, or of inputs of another size or type
            than x; a state of the native backend, if that does not support this step; an unknown normalisation; a
            backend that is unknown or does not support this step.
    """
    dynamic = isinstance(weight, Tensor) and weight.ndim == 4
    check_operands("conv_step", x, weight, dynamic)
    if x.shape[0] != 1:  # len() would warn while a program is recorded
        outs = [x[:0]]
        for t in range(x.shape[0]):
            kernel = weight[t : t + 1] if dynamic else weight
            out, state = conv_step(x[t : t + 1], kernel, state, normalization=normalization, backend=backend)
            outs.append(out)
        return torch.cat(outs), state or {}
    if state:
        native = "ring" in state
        _check_state(state, x, weight)
    else:
        native = choose_backend("conv_step", backend, x, weight) == "native"
    if not native:
        window, state = push(x, state, weight.shape[-1])
        return reference.conv_step(window, weight, normalization=normalization), state
    state = state or _empty_ring(x, weight.shape[-1])
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    operands = x, weight.to(x.dtype), state["ring"], state["ancestors"], state["position"], softmax
    return torch.ops.lightconv.conv_step(*operands), state


def _check_state(state: State, x: Tensor, weight: Tensor) -> None:
    """Check that a state fits the arguments of ``conv_step``.

    Raises:
        ValueError: the width of the kernel, or the size or type of the inputs, does not fit the state, or the state's
            backend does not support the step.
    """
    native, width = "ring" in state, weight.shape[-1]
    inputs = state["ring" if native else "inputs"]
    length, hypotheses = inputs.shape[0], (state["ancestors"] if native else inputs).shape[1]
    fits = length == width if native else length < width
    if not fits or (hypotheses, inputs.shape[2], inputs.dtype) != (*x.shape[1:], x.dtype):
        history = f"for kernels of {length} weights" if native else f"{length} inputs each"  # a ring has K slots
        raise ValueError(
            f"conv_step: the state is of {hypotheses} hypotheses, {history}, of {inputs.shape[2]} "
            f"channels, {inputs.dtype}; got x {tuple(x.shape)}, {x.dtype}, and weight {tuple(weight.shape)}. "
            "Re-order the state when the number of hypotheses changes"
        )
    if native and (reason := unsupported_reason("conv_step", x, weight)):
        raise ValueError(
            f"conv_step: the native backend began this state and cannot take this step: {reason}. Take all steps "
            "of a state under the same conditions, or start it with backend='reference'"
        )


def reorder_state(state: State, new_order: Tensor) -> State:
    """Reorder the beams: hypothesis b gets the history of new_order[b]. The number of hypotheses may change.

    The state that was passed must not be used again, since the new one may share its memory. Copy it first
    (``copy.deepcopy``) to reorder it in two ways.

    Args:
        state: a state that ``conv_step`` or ``push`` returned.
        new_order: (B',) int32 or int64, indices of the hypotheses in ``state``.
    """
    if "ring" not in state:
        return {name: value.index_select(1, new_order) for name, value in state.items()}
    ring = state["ring"]
    # gather takes a third of the time of index_select on a CPU
    ancestors = state["ancestors"].gather(1, new_order.long().expand(len(ring), -1))
    if len(new_order) <= ring.shape[1]:
        return {**state, "ancestors": ancestors}
    # more hypotheses than the ring has rows: build a larger ring, in which each hypothesis has its own row
    slots = torch.arange(len(ring), device=ring.device).unsqueeze(1)
    ring = ring[slots, ancestors.long()]
    rows = torch.arange(len(new_order), dtype=torch.int32, device=ring.device).repeat(len(ring), 1)
    return {**state, "ring": ring, "ancestors": rows}


def push(x: Tensor, state: State | None, size: int | None) -> tuple[Tensor, State]:
    """Append an input to a window of the latest inputs.

    Args:
        x: (1, B, C), the newest input.
        state: the state that the previous step returned; None or empty before the first step.
        size: the largest number of inputs in a window; None for no limit.

    Returns:
        The window, (t, B, C) of the last t <= size inputs, and the state for the next step.

    Raises:
        ValueError: the state and x differ in the number of hypotheses or channels.
    """
    if state:
        check_held(state["inputs"], x)
        x = torch.cat([state["inputs"], x])
    # The next step adds one input, so it needs size - 1 of these. Counting from the end works for any length in a
    # recorded program.
    latest = x if size is None else x[1 - size :] if size > 1 else x[:0]
    return x, {"inputs": latest}


def check_held(tensor: Tensor, x: Tensor) -> None:
    """Check that a tensor of a state, (any, B, C), has as many hypotheses and channels as x (1, B, C).

    Raises:
        ValueError: the numbers differ.
    """
    if tensor.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"the state is of {tensor.shape[1]} hypotheses with {tensor.shape[2]} channels each; "
            f"got x {tuple(x.shape)}. Re-order the state when the number of hypotheses changes"
        )


def _empty_ring(x: Tensor, width: int) -> State:
    _, rows, channels = x.shape
    return {
        "ring": x.new_empty(width, rows, channels),
        "ancestors": torch.zeros(width, rows, dtype=torch.int32, device=x.device),
        "position": torch.zeros(1, dtype=torch.int64, device=x.device),
    }
