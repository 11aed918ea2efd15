"""Load the native library once a process and tells torch what its operators give."""

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.ops.native import build

logger = logging.getLogger(__name__)
_lock = threading.Lock()

# values of oneDNN's variables that leave a processor no units for bfloat16 (0), or those of AVX512-BF16 alone (1)
LIMITS = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"), 0),
    **dict.fromkeys(("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"), 1),
}
# bits of the widest vectors that values of torch's variable leave to kernels
VECTOR_BITS = {"default": 128, "avx2": 256}


def load() -> str | None:
    """Make ``torch.ops.lightconv`` available; None, or a sentence that says why it is not. Compiles at first use."""
    with _lock:
        return _load()


@functools.cache
def _load() -> str | None:
    try:
        torch.ops.load_library(str(build.library_path()))
    except build.BuildError as error:
        return f"its library could not be compiled: {error}"
    except OSError as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        again = f"remove {build.cache_folder()}, to have it compiled again"
        if "failed to map segment" in str(error):
            again = "its disk allows no programs (noexec): set LIGHTCONV_CACHE to a folder on another"
        return f"its library cannot be loaded: {error}{cause}; {again}"
    _register_fakes()
    if (limit := isa_limit()) in LIMITS:
        torch.ops.lightconv.cpu_bf16_units(LIMITS[limit])
    if (capability := vector_limit()) in VECTOR_BITS:
        torch.ops.lightconv.cpu_vector_bits(VECTOR_BITS[capability])
    return None


def isa_limit() -> str:
    """The instructions that oneDNN's variables limit a process to, in capitals; empty where they do not."""
    given = (os.environ.get(f"{name}_MAX_CPU_ISA", "") for name in ("ONEDNN", "DNNL"))
    return next(filter(None, given), "").upper()


def vector_limit() -> str:
    """The instructions that torch's variable limits a process to; empty where it does not."""
    return os.environ.get("ATEN_CPU_CAPABILITY", "")


def _register_fakes() -> None:
    """Shapes and types without data, for torch.compile and the meta device. Arguments that decide nothing are ``_``."""

    def like(x: Tensor, *_: object) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def in_order_of(x: Tensor, like: Tensor) -> Tensor:
        """Of the shape of ``like``; batch first where x (T, B, C) lies so."""
        batch_first = like.ndim > 2 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous()
        if not batch_first:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        return torch.empty_like(like.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)

    def conv(x: Tensor, *_: object) -> Tensor:
        return in_order_of(x, x)

    def conv_backward(grad: Tensor, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        _, softmax, _, _, need_x, need_weight, *_ = options
        empty = x.new_empty(0)
        # LightConv's is a sum over all positions, and kept in float32 where a normalisation's derivative follows
        wide = weight.ndim == 2 and not softmax and x.dtype != torch.float64
        of_weight = in_order_of(x, weight.float() if wide else weight) if need_weight else empty
        return in_order_of(x, x) if need_x else empty, of_weight

    def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return x.new_empty(*x.shape[:2], x.shape[2] // 2)

    def gradient_of(grad: Tensor, x: Tensor, *_: object) -> Tensor:
        return like(x)

    def smoothed_nll(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
        return logits.new_empty(2, dtype=torch.float64), logits.new_empty(len(logits), dtype=torch.float64)

    def linear(x: Tensor, weight: Tensor, *_: object) -> Tensor:
        return x.new_empty(*x.shape[:-1], weight.shape[0])

    def bf16_linear_backward(
        grad: Tensor, x: Tensor, weight: Tensor, need_x: bool, need_weight: bool, need_bias: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return (
            like(x) if need_x else x.new_empty(0),
            like(weight) if need_weight else x.new_empty(0),
            x.new_empty(weight.shape[0] if need_bias else 0),
        )

    def bf16_pack(weight: Tensor) -> Tensor:
        blocks, tiles = (-(-size // of) for size, of in zip(weight.shape, (16, 32), strict=True))
        return weight.new_empty(blocks, tiles, 16, 32, dtype=torch.bfloat16)

    def beam_candidates(
        logits: Tensor, scores: Tensor | None, beams: int, count: int, *_: object
    ) -> tuple[Tensor, Tensor, Tensor]:
        best = logits.new_empty(logits.shape[0] // beams, count)
        return best, best.new_empty(best.shape, dtype=torch.int64), best.new_empty(best.shape, dtype=torch.int64)

    def step_candidates(
        logits: Tensor, scores: Tensor, limits: Tensor, beams: int, count: int, *_: object
    ) -> tuple[Tensor, Tensor, Tensor]:
        best = scores.new_empty(logits.shape[0] // beams, count)
        return best, limits.new_empty(best.shape), limits.new_empty(best.shape)

    def wide(x: Tensor) -> torch.dtype:
        return torch.promote_types(x.dtype, torch.float32)

    def residual_norm(x: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
        return like(x), like(x), x.new_empty(2, *x.shape[:-1], 1, dtype=wide(x))

    def residual_norm_backward(
        grad: Tensor, grad_z: Tensor | None, z: Tensor, weight: Tensor, stats: Tensor, p: float, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        return like(z), like(z) if p > 0 else z.new_empty(0), z.new_empty(2, z.shape[-1])

    def column_sums(x: Tensor) -> Tensor:
        return x.new_empty(x.shape[1])

    def nothing(*_: object) -> None:
        return None

    fakes: dict[str, Callable[..., object]] = {
        "light_conv": conv,
        "dynamic_conv": conv,
        "light_conv_backward": conv_backward,
        "dynamic_conv_backward": conv_backward,
        "conv_step": like,
        "glu_mask": glu_mask,
        "glu_mask_backward": gradient_of,
        "dropout": like,
        "smoothed_nll": smoothed_nll,
        "smoothed_nll_backward": gradient_of,
        "residual_norm": residual_norm,
        "residual_norm_backward": residual_norm_backward,
        "column_sums": column_sums,
        "update_decide": nothing,
        "adam_step": nothing,
        "attend": like,
        "step_candidates": step_candidates,
        "decoder_block": like,
        "few_rows_linear": linear,
        "bf16_linear": linear,
        "bf16_linear_backward": bf16_linear_backward,
        "bf16_pack": bf16_pack,
        "beam_candidates": beam_candidates,
    }
    for name, fake in fakes.items():
        torch.library.register_fake(f"lightconv::{name}", fake)
