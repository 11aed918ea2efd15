"""Normalisations of a kernel's K weights: softmax, and the alternatives of Table 6 (appendix A)."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from lightconv_plugin.ops.checks import check_choice

Normalization = Literal["none", "softmax", "sigmoid", "tanh", "l1", "l2", "power", "abs", "abs_l1", "abs_l2"]
_NAMES = get_args(Normalization)
EPSILON = 1e-6  # Table 6


def _l1(w: Tensor) -> Tensor:
    return w.abs().sum(dim=-1, keepdim=True) + EPSILON


def _l2(w: Tensor) -> Tensor:
    return torch.linalg.vector_norm(w, dim=-1, keepdim=True) + EPSILON


NORMALIZATIONS: dict[Normalization, Callable[[Tensor], Tensor]] = {
    "none": lambda w: w,
    "softmax": lambda w: torch.softmax(w, dim=-1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "l1": lambda w: w / _l1(w),
    "l2": lambda w: w / _l2(w),
    "power": lambda w: w.square(),
    "abs": torch.abs,
    "abs_l1": lambda w: w.abs() / _l1(w),
    "abs_l2": lambda w: w.abs() / _l2(w),
}


def check_normalization(name: str) -> None:
    """Check the name of a normalisation.

    Raises:
        ValueError: an unknown name.
    """
    check_choice("normalization", name, _NAMES)


def normalize_kernel(weight: Tensor, normalization: Normalization = "softmax") -> Tensor:
    """Normalise kernels over their width, in float32 for the 16-bit types.

    Args:
        weight: (..., K), any floating type.
        normalization: a name in ``ops.NORMALIZATIONS``; Table 6 gives each one's BLEU.

    Returns:
        (..., K), float32 where weight is float16 or bfloat16, else of weight's own type.

    Raises:
        ValueError: an unknown name.
    """
    check_normalization(normalization)
    if weight.dtype in (torch.float16, torch.bfloat16):
        weight = weight.float()
    return NORMALIZATIONS[normalization](weight)


def prepare_kernel(weight: Tensor, normalization: Normalization, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """Return kernels for a compiled operator, and True if they are logits of which it must take the softmax.

    Logits and unnormalised kernels have the type ``dtype``; kernels normalised here may have a wider type. Logits of a
    wider type than ``dtype``, such as LightConv's parameters under autocast, are normalised before they are rounded.

    Raises:
        ValueError: an unknown name.
    """
    if normalization in ("softmax", "none") and torch.promote_types(weight.dtype, dtype) == dtype:
        return weight.to(dtype), normalization == "softmax"
    return normalize_kernel(weight, normalization), False
