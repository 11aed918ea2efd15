"""Loads the native library once a process and tells torch what its operators give."""

import functools
import logging
import threading

import torch
from torch import Tensor

from lightconv_plugin.ops.native import build

logger = logging.getLogger(__name__)
_lock = threading.Lock()


@torch.compiler.assume_constant_result
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
        return f"its library cannot be loaded: {error}; remove {build.cache_folder()}, to have it compiled again"
    _register_fakes()
    return None


def _register_fakes() -> None:
    """Shapes and types without data, for torch.compile and the meta device."""

    def conv(
        x: Tensor, weight: Tensor, padding_l: int, softmax: bool, dropconnect: float, seed: Tensor | None
    ) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def conv_backward(
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        padding_l: int,
        softmax: bool,
        dropconnect: float,
        seed: Tensor | None,
        need_x: bool,
        need_weight: bool,
    ) -> tuple[Tensor, Tensor]:
        empty = x.new_empty(0)
        return (
            torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else empty,
            torch.empty_like(weight, memory_format=torch.contiguous_format) if need_weight else empty,
        )

    for name in ("light_conv", "dynamic_conv"):
        torch.library.register_fake(f"lightconv::{name}", conv)
        torch.library.register_fake(f"lightconv::{name}_backward", conv_backward)

    def conv_step(
        x: Tensor, weight: Tensor, ring: Tensor, ancestors: Tensor, position: Tensor, softmax: bool
    ) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def reorder_ancestors(ancestors: Tensor, order: Tensor) -> Tensor:
        return ancestors.new_empty(ancestors.shape[0], order.shape[0])

    def glu_mask(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return x.new_empty(*x.shape[:2], x.shape[2] // 2)

    def glu_mask_backward(grad: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def dropout(x: Tensor, p: float, seed: Tensor) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def smoothed_nll(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
        return logits.new_empty(2, dtype=torch.float64), logits.new_empty(len(logits), dtype=torch.float64)

    def smoothed_nll_backward(
        logits: Tensor, target: Tensor, log_sums: Tensor, nll_scale: float, all_scale: float, ignore: int
    ) -> Tensor:
        return torch.empty_like(logits, memory_format=torch.contiguous_format)

    torch.library.register_fake("lightconv::smoothed_nll", smoothed_nll)
    torch.library.register_fake("lightconv::smoothed_nll_backward", smoothed_nll_backward)

    def attend(
        query: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None, sentence: Tensor, heads: int
    ) -> Tensor:
        return torch.empty_like(query, memory_format=torch.contiguous_format)

    def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_empty(*x.shape[:-1], weight.shape[0])

    def beam_candidates(
        logits: Tensor,
        scores: Tensor | None,
        beams: int,
        count: int,
        temperature: float,
        pad: int,
        unk: int,
        unk_penalty: float,
        banned: int,
        only: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        best = logits.new_empty(logits.shape[0] // beams, count)
        return best, best.new_empty(best.shape, dtype=torch.int64), best.new_empty(best.shape, dtype=torch.int64)

    torch.library.register_fake("lightconv::attend", attend)
    torch.library.register_fake("lightconv::few_rows_linear", few_rows_linear)
    torch.library.register_fake("lightconv::beam_candidates", beam_candidates)
    torch.library.register_fake("lightconv::dropout", dropout)
    torch.library.register_fake("lightconv::glu_mask", glu_mask)
    torch.library.register_fake("lightconv::glu_mask_backward", glu_mask_backward)
    torch.library.register_fake("lightconv::conv_step", conv_step)
    torch.library.register_fake("lightconv::reorder_ancestors", reorder_ancestors)
