"""Loads the native library once a process and tells torch what its operators give."""

import functools
import logging
import threading

import torch
from torch import Tensor

from lightconv_plugin.ops.native import build

logger = logging.getLogger(__name__)
_lock = threading.Lock()


def load() -> str | None:
    """Make ``torch.ops.lightconv`` available; None, or a sentence that says why it is not. Compiles at first use."""
    with _lock:
        return _load()


@functools.cache
def _load() -> str | None:
    try:
        torch.ops.load_library(str(build.library_path()))
    except (build.BuildError, OSError) as error:
        return f"the native library is not available: {error}"
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

    torch.library.register_fake("lightconv::glu_mask", glu_mask)
    torch.library.register_fake("lightconv::glu_mask_backward", glu_mask_backward)
    torch.library.register_fake("lightconv::conv_step", conv_step)
    torch.library.register_fake("lightconv::reorder_ancestors", reorder_ancestors)
