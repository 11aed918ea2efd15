"""Floating-point operations of the library's operators, for ``torch.utils.flop_counter.FlopCounterMode``.

The rules are PyTorch's: each product in a convolution, a linear layer or attention counts as 2 operations, since it is
also added to a sum. Products at padding count too. Biases, normalisations, dropout, gates and losses do not count.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

Shape = Sequence[int]


def convolution(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """Count a convolution of x (T, B, C) or (1, N, C): each number of the result is a sum of K products."""
    return 2 * prod(x) * weight[-1]


def conv_backward(
    grad: Shape,
    x: Shape,
    weight: Shape,
    padding_l: int,
    softmax: bool,
    dropconnect: float,
    seed: Shape | None,
    need_x: bool,
    need_weight: bool,
    need_state: bool,
    offsets: Shape | None,
    state: Shape | None,
    **_: Any,
) -> int:
    """Count the gradients of x, the kernels and the state: each gradient takes K products per number of x or state."""
    numbers = prod(x) * (need_x + need_weight) + (prod(state) if need_state and state is not None else 0)
    return 2 * numbers * weight[-1]


def linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """Count a linear layer: x (..., in) and weight (out, in)."""
    return 2 * prod(x) * weight[0]


def linear_backward(grad: Shape, x: Shape, weight: Shape, need_x: bool, need_weight: bool, *_: Any, **__: Any) -> int:
    return linear(x, weight) * (need_x + need_weight)


def attend(query: Shape, keys: Shape, *_: Any, **__: Any) -> int:
    """Count attention of N queries (1, N, C), each to the S keys and the S values of its sentence."""
    return 4 * prod(query) * keys[1]


def packed_linear(x: Shape, packed: Shape, bias: Shape | None, out: int, *_: Any, **__: Any) -> int:
    """Count a linear layer with packed weights: x (..., in). The result is (..., ``out``)."""
    return 2 * prod(x) * out


def decoder_step(
    x: Shape,
    weights: Sequence[Shape],
    rings: Sequence[Shape],
    ancestors: Shape,
    position: Shape,
    keys: Sequence[Shape],
    values: Sequence[Shape],
    padding: Shape | None,
    sentence: Shape,
    conv_heads: int,
    heads: int,
    gated: bool,
    dynamic: bool,
    *_: Any,
    **__: Any,
) -> int:
    """Count the linear layers, convolutions and attentions of all blocks for N hypotheses (1, N, C).

    The width of a linear layer is read from its bias, since its weight may be packed.
    """
    total, each = 0, len(weights) // max(len(rings), 1)
    for i, (ring, source) in enumerate(zip(rings, keys, strict=True)):
        block = weights[each * i : each * (i + 1)]
        # in the order of ops.BlockWeights
        in_bias, out_bias, query_bias, attended_bias, first_bias, second_bias = (
            block[n] for n in (1, 4, 8, 10, 14, 16)
        )
        width, _rows, channels = ring
        products = channels * (width + (conv_heads * width if dynamic else 0))
        for inputs, bias in (
            (x, in_bias),
            (ring, out_bias),
            (x, query_bias),
            (query_bias, attended_bias),
            (x, first_bias),
            (first_bias, second_bias),
        ):
            products += inputs[-1] * bias[0]
        total += 2 * x[1] * products + attend((1, x[1], query_bias[0]), source)
    return total


FORMULAS: dict[str, Callable[..., int]] = {
    "light_conv": convolution,
    "dynamic_conv": convolution,
    "conv_step": convolution,
    "conv_backward": conv_backward,
    "few_rows_linear": linear,
    "packed_linear": packed_linear,
    "bf16_linear": linear,
    "bf16_linear_backward": linear_backward,
    "attend": attend,
    "decoder_step": decoder_step,
}


def register() -> None:
    """Register ``FORMULAS`` with torch. The library must be loaded."""
    from torch.utils.flop_counter import register_flop_formula  # slow to import: it imports Triton, if installed

    for name, formula in FORMULAS.items():
        register_flop_formula(getattr(torch.ops.lightconv, name))(formula)
