"""Shapes and types of the results of the library's operators, without data: for torch.compile and the meta device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def in_order_of(x: Tensor, shaped: Tensor) -> Tensor:
    """Return a tensor of the shape of ``shaped``, with the batch outermost in memory if it is so in x (T, B, C)."""
    batch_first = shaped.ndim > 2 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous()
    return like(shaped.transpose(0, 1)).transpose(0, 1) if batch_first else like(shaped)


def conv_backward(grad: Tensor, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, ...]:
    _, softmax, _, _, need_x, need_weight, need_state, _, state = options
    # LightConv's kernel gradient, a sum over all positions, stays in float32 if a normalisation's derivative follows
    wide = weight.ndim == 2 and not softmax and x.dtype != torch.float64
    return (
        in_order_of(x, x) if need_x else x.new_empty(0),
        in_order_of(x, weight.float() if wide else weight) if need_weight else x.new_empty(0),
        in_order_of(state, state) if need_state else x.new_empty(0),
    )


def bf16_linear_backward(grad: Tensor, x: Tensor, weight: Tensor, *need: bool) -> tuple[Tensor, ...]:
    shaped = x, weight, weight[:, 0]  # tensors of the shapes of the three gradients; weight[:, 0] is shaped as the bias
    return tuple(like(tensor) if needed else x.new_empty(0) for tensor, needed in zip(shaped, need, strict=True))


def pack_weight(weight: Tensor, precision: str) -> Tensor:
    out, inputs = weight.shape
    blocks, tiles = -(-out // 16), -(-inputs // 32)
    if precision == "fp32":
        return weight.new_empty(blocks, inputs, 16)
    if precision == "bf16":
        return weight.new_empty(blocks, tiles, 16, 32, dtype=torch.bfloat16)
    return weight.new_empty(blocks, 16 * (-(-inputs // 64) * 64 + 8), dtype=torch.int8)


def candidates(logits: Tensor, _: object, __: object, beams: int, count: int, *___: object) -> tuple[Tensor, ...]:
    best = logits.new_empty(logits.shape[0] // beams, count, dtype=torch.float32)
    return best, best.long(), best.long()


def residual_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return like(x), like(x), x.new_empty(2, *x.shape[:-1], 1, dtype=torch.promote_types(x.dtype, torch.float32))


def residual_norm_backward(grad: Tensor, z: Tensor, weight: Tensor, stats: Tensor, p: float, seed: object) -> Any:
    return like(z), like(z) if p > 0 else z.new_empty(0), z.new_empty(2, z.shape[-1])


FAKES: dict[str, Callable[..., object]] = {
    **dict.fromkeys(("conv_step", "dropout", "attend", "decoder_step"), lambda x, *_: like(x)),
    **dict.fromkeys(("glu_mask_backward", "smoothed_nll_backward"), lambda _, x, *__: like(x)),
    **dict.fromkeys(("light_conv", "dynamic_conv"), lambda x, *_: in_order_of(x, x)),
    **dict.fromkeys(("few_rows_linear", "bf16_linear"), lambda x, w, *_: x.new_empty(*x.shape[:-1], w.shape[0])),
    **dict.fromkeys(("update_decide", "adam_step", "search_step", "beam_search"), lambda *_: None),
    "conv_backward": conv_backward,
    "glu_mask": lambda x, _: x.new_empty(*x.shape[:2], x.shape[2] // 2),
    "smoothed_nll": lambda x, *_: tuple(x.new_empty(n, dtype=torch.float64) for n in (2, len(x))),
    "residual_norm": residual_norm,
    "residual_norm_backward": residual_norm_backward,
    "bf16_linear_backward": bf16_linear_backward,
    "pack_weight": pack_weight,
    "packed_linear": lambda x, _, __, out, ___: x.new_empty(*x.shape[:-1], out),
    "step_candidates": candidates,
}


def register() -> None:
    """Register ``FAKES`` with torch. The library must be loaded."""
    for name, fake in FAKES.items():
        torch.library.register_fake(f"lightconv::{name}", fake)
