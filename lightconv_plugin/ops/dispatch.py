"""The public operators: arguments are checked once, here, and one chooser picks the code that runs.

Nothing is ever skipped: what a backend cannot do is an error that says what was got and what is expected, or, where
the choice was left open, done by the reference, with one warning that says why.
"""

import os
from types import ModuleType

import torch
from torch import Tensor

from lightconv_plugin.ops import native, reference
from lightconv_plugin.ops.announce import announce

BACKENDS: dict[str, ModuleType] = {"native": native, "reference": reference}
CHOICES = ("auto", *BACKENDS)
VARIABLE = "LIGHTCONV_BACKEND"  # the environment's say where the caller leaves it open


def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """LightConv over a whole sequence: x (T, B, C) and logits (H, K) give (T, B, C).

    See ``reference.light_conv`` for the definition.

    Raises:
        ValueError: shapes that do not fit, padding_l outside 0..K-1, dropconnect outside [0, 1), or an unknown
            normalisation or backend.
    """
    check_operands("light_conv", x, weight, 2, "(H, K)")
    _check_kernel("light_conv", weight, padding_l, dropconnect)
    chosen = choose_backend("light_conv", backend, x, weight)
    return chosen.light_conv(x, weight, padding_l=padding_l, normalization=normalization, dropconnect=dropconnect)


def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """DynamicConv over a whole sequence: x (T, B, C) and logits (T, B, H, K) give (T, B, C).

    See ``reference.dynamic_conv`` for the definition.

    Raises:
        ValueError: shapes that do not fit, padding_l outside 0..K-1, dropconnect outside [0, 1), or an unknown
            normalisation or backend.
    """
    check_operands("dynamic_conv", x, weight, 4, "(T, B, H, K)")
    if weight.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"dynamic_conv: one kernel a position is expected, weight (T, B, H, K) with T, B = "
            f"{tuple(x.shape[:2])} as in x; got weight {tuple(weight.shape)}"
        )
    _check_kernel("dynamic_conv", weight, padding_l, dropconnect)
    chosen = choose_backend("dynamic_conv", backend, x, weight)
    return chosen.dynamic_conv(x, weight, padding_l=padding_l, normalization=normalization, dropconnect=dropconnect)


def choose_backend(operator: str, backend: str, x: Tensor, *others: Tensor | None) -> ModuleType:
    """Return the module that runs ``operator`` on these tensors; logs the choice the first time it is made.

    "auto" leaves the choice to $LIGHTCONV_BACKEND, and that, where it is not set, to ``native.unsupported_reason``:
    native where the library takes the call, else the reference. The variable speaks of all operators at once, so that
    its "native" does not ask for kernels that the library is not meant to have.

    Raises:
        ValueError: the backend named does not exist, or cannot take x. A named backend is never replaced by another.
    """
    if torch.compiler.is_compiling():
        import lightconv_plugin.ops.compiling  # noqa: F401  every operator comes by here first
    name = os.environ.get(VARIABLE, "auto") if backend == "auto" else backend
    if name == "reference":
        announce(operator, name)
        return reference
    if name not in CHOICES:
        raise ValueError(f"backend {name!r} is not available; expected one of: {', '.join(CHOICES)}")
    refused = native.unsupported_reason(operator, x, *others)
    if refused is None:
        announce(operator, "native")
        return native
    if backend == "native" or (name == "native" and not refused.by_design):
        raise ValueError(f"backend 'native' was asked for, and cannot run {operator}: {refused.reason}")
    if not refused.by_design:
        announce(operator, "reference", refused.reason)
    return reference


def takes(operator: str, x: Tensor, *others: Tensor | None) -> bool:
    """Return True if the library runs ``operator`` on these tensors; see ``choose_backend``."""
    return choose_backend(operator, "auto", x, *others) is native


def check_operands(operator: str, x: Tensor, weight: Tensor, weight_ndim: int, weight_shape: str) -> None:
    """Check what every operator asks of its two tensors.

    Raises:
        ValueError: other numbers of dimensions, integers, or heads that do not divide the channels.
    """
    if x.ndim != 3 or weight.ndim != weight_ndim:
        raise ValueError(
            f"{operator}: expected x (T, B, C) and weight {weight_shape}; "
            f"got x {tuple(x.shape)} and weight {tuple(weight.shape)}"
        )
    if not (x.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"{operator}: expected floating-point tensors; got x {x.dtype} and weight {weight.dtype}")
    if not weight.shape[-2] or x.shape[2] % weight.shape[-2]:
        raise ValueError(f"{operator}: {weight.shape[-2]} heads do not divide the {x.shape[2]} channels of x")


def _check_kernel(operator: str, weight: Tensor, padding_l: int, dropconnect: float) -> None:
    width = weight.shape[-1]
    if not 0 <= padding_l < width:
        raise ValueError(f"{operator}: padding_l is {padding_l}; a kernel of width {width} takes 0..{width - 1}")
    if not 0.0 <= dropconnect < 1.0:
        raise ValueError(f"{operator}: dropconnect is {dropconnect}; expected 0 <= p < 1")
