"""One step of decoding: both operators with the inputs so far as a state, which follows beam search.

The state is a dictionary of tensors, as fairseq's incremental state holds them. Its form is that of the backend chosen
at the first step, which then takes all that follow.
"""

from types import ModuleType

from torch import Tensor

from lightconv_plugin.ops import native, window
from lightconv_plugin.ops.dispatch import check_operands, choose_backend
from lightconv_plugin.ops.native import ring

State = dict[str, Tensor]


def conv_step(
    x: Tensor, weight: Tensor, state: State | None, *, normalization: str = "softmax", backend: str = "auto"
) -> tuple[Tensor, State]:
    """LightConv or DynamicConv at the newest position of a decoder.

    Args:
        x: (1, B, C), the newest input.
        weight: logits (H, K) for LightConv, (1, B, H, K), those of this position, for DynamicConv.
        state: what the step before gave; None before the first.
        normalization, backend: as for ``light_conv``.

    Returns:
        (1, B, C), what the full sequence with padding_l = K - 1 gives at this position, and the next step's state.
        The state that was given is used up.

    Raises:
        ValueError: shapes that do not fit, or an unknown normalisation or backend.
    """
    if weight.ndim not in (2, 4):
        raise ValueError(f"conv_step: expected weight (H, K) or (1, B, H, K); got {tuple(weight.shape)}")
    check_operands("conv_step", x, weight, weight.ndim, "(H, K) or (1, B, H, K)")
    if x.shape[0] != 1:
        raise ValueError(f"conv_step: one position is expected, x (1, B, C); got {tuple(x.shape)}")
    if weight.ndim == 4 and weight.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"conv_step: the kernels of one position are expected, weight (1, {x.shape[1]}, H, K); "
            f"got {tuple(weight.shape)}"
        )
    if state is None:
        chosen = choose_backend("conv_step", backend, x, weight)
        form = ring if chosen is native else window
    else:
        form = _form(state)
        if form.rows(state) != x.shape[1]:
            raise ValueError(
                f"conv_step: the state holds {form.rows(state)} hypotheses and x {x.shape[1]}; "
                "re-order the state when hypotheses come or go"
            )
    return form.conv_step(x, weight, state, normalization=normalization)


def reorder_state(state: State, new_order: Tensor) -> State:
    """The state in which hypothesis b continues what new_order[b] has read; there may be fewer or more than before.

    The state that was given is used up: the new one may share its memory. Copy it first (``copy.deepcopy``) to order it
    twice.
    """
    return _form(state).reorder(state, new_order)


def _form(state: State) -> ModuleType:
    return ring if "ring" in state else window
