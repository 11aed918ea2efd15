"""Shapes without data, and floating-point operations: what torch asks of the library's operators beside results.

Shapes are for torch.compile and the meta device, operations for ``torch.utils.flop_counter.FlopCounterMode``, which
counts products alone: two operations each.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import flop_registry, register_flop_formula

Shape = tuple[int, ...]


def like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def in_order_of(x: Tensor, shaped: Tensor) -> Tensor:
    """Of the shape of ``shaped``; batch first where x (T, B, C) lies so."""
    batch_first = shaped.ndim > 2 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous()
    return like(shaped.transpose(0, 1)).transpose(0, 1) if batch_first else like(shaped)


def conv_backward(grad: Tensor, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, ...]:
    _, softmax, _, _, need_x, need_weight, need_state, _, state = options
    # LightConv's is a sum over all positions, and kept in float32 where a normalisation's derivative follows
    wide = weight.ndim == 2 and not softmax and x.dtype != torch.float64
    return (
        in_order_of(x, x) if need_x else x.new_empty(0),
        in_order_of(x, weight.float() if wide else weight) if need_weight else x.new_empty(0),
        in_order_of(state, state) if need_state else x.new_empty(0),
    )


def bf16_linear_backward(grad: Tensor, x: Tensor, weight: Tensor, *need: bool) -> tuple[Tensor, ...]:
    given = x, weight, weight[:, 0]
    return tuple(like(of) if needed else x.new_empty(0) for of, needed in zip(given, need, strict=True))


def bf16_pack(weight: Tensor) -> Tensor:
    blocks, tiles = (-(-size // of) for size, of in zip(weight.shape, (16, 32), strict=True))
    return weight.new_empty(blocks, tiles, 16, 32, dtype=torch.bfloat16)


def candidates(logits: Tensor, _: object, __: object, beams: int, count: int, *___: object) -> tuple[Tensor, ...]:
    best = logits.new_empty(logits.shape[0] // beams, count, dtype=torch.float32)
    return best, best.long(), best.long()


def residual_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return like(x), like(x), x.new_empty(2, *x.shape[:-1], 1, dtype=torch.promote_types(x.dtype, torch.float32))


def residual_norm_backward(grad: Tensor, z: Tensor, weight: Tensor, stats: Tensor, p: float, seed: object) -> Any:
    return like(z), like(z) if p > 0 else z.new_empty(0), z.new_empty(2, z.shape[-1])


FAKES: dict[str, Callable[..., object]] = {
    **dict.fromkeys(("conv_step", "dropout", "attend", "decoder_block"), lambda x, *_: like(x)),
    **dict.fromkeys(("glu_mask_backward", "smoothed_nll_backward"), lambda _, x, *__: like(x)),
    **dict.fromkeys(("light_conv", "dynamic_conv"), lambda x, *_: in_order_of(x, x)),
    **dict.fromkeys(("few_rows_linear", "bf16_linear"), lambda x, w, *_: x.new_empty(*x.shape[:-1], w.shape[0])),
    **dict.fromkeys(("update_decide", "adam_step", "search_step"), lambda *_: None),
    "conv_backward": conv_backward,
    "glu_mask": lambda x, _: x.new_empty(*x.shape[:2], x.shape[2] // 2),
    "smoothed_nll": lambda x, *_: tuple(x.new_empty(n, dtype=torch.float64) for n in (2, len(x))),
    "residual_norm": residual_norm,
    "residual_norm_backward": residual_norm_backward,
    "bf16_linear_backward": bf16_linear_backward,
    "bf16_pack": bf16_pack,
    "step_candidates": candidates,
}


def conv_flops(x: Shape, weight: Shape, *_: Any, out_shape: Any) -> int:
    return 2 * math.prod(x) * weight[-1]


def conv_backward_flops(grad: Shape, x: Shape, weight: Shape, *options: Any, out_shape: Any) -> int:
    need_x, need_weight, need_state = options[4:7]
    return ((need_x or need_state) + need_weight) * conv_flops(x, weight, out_shape=out_shape)


def linear_flops(x: Shape, weight: Shape, *_: Any, out_shape: Any) -> int:
    return 2 * math.prod(x) * weight[0]


def linear_backward_flops(
    grad: Shape, x: Shape, weight: Shape, need_x: bool, need_weight: bool, _: bool, *, out_shape: Any
) -> int:
    return (need_x + need_weight) * linear_flops(x, weight, out_shape=out_shape)


def attend_flops(query: Shape, keys: Shape, *_: Any, out_shape: Any) -> int:
    return 4 * math.prod(query) * keys[1]


def decoder_block_flops(
    x: Shape, parameters: list[Shape], packed: Any, ring: Shape, a: Any, b: Any, keys: Shape, *rest: Any, out_shape: Any
) -> int:
    dynamic = rest[5]
    maps = [weight for place, weight in enumerate(parameters) if len(weight) == 2 and (dynamic or place != 2)]
    products = sum(2 * x[1] * math.prod(weight) for weight in maps)
    return products + 2 * x[1] * ring[2] * ring[0] + attend_flops(x, keys, out_shape=out_shape)


FLOPS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("light_conv", "dynamic_conv", "conv_step"), conv_flops),
    "conv_backward": conv_backward_flops,
    **dict.fromkeys(("few_rows_linear", "bf16_linear"), linear_flops),
    "bf16_linear_backward": linear_backward_flops,
    "attend": attend_flops,
    "decoder_block": decoder_block_flops,
}


def register() -> None:
    """Tell torch of them; the library is loaded."""
    for name, fake in FAKES.items():
        torch.library.register_fake(f"lightconv::{name}", fake)
    formulas = {getattr(torch.ops.lightconv, name): formula for name, formula in FLOPS.items()}
    for operator, formula in formulas.items():
        register_flop_formula(operator)(formula)
    for mode in _get_current_dispatch_mode_stack():  # a counter keeps the formulas that there were when it was made
        if (counter := getattr(mode, "counter", None)) is not None:
            counter.flop_registry |= {operator: flop_registry[operator] for operator in formulas}
