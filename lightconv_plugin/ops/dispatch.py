"""The public operators: arguments are checked once, here, and one chooser picks the code that runs.

Nothing is ever skipped: what a backend cannot do is an error that says what was got and what is expected, or, where
the choice was left open, done by the reference, with one warning that says why.
"""

import functools
import os
from types import ModuleType
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from lightconv_plugin.ops import native, reference, sequences
from lightconv_plugin.ops.announce import announce
from lightconv_plugin.ops.epilogue import Epilogue
from lightconv_plugin.ops.sequences import Place

BACKENDS: dict[str, ModuleType] = {"native": native, "reference": reference}
CHOICES = ("auto", *BACKENDS)
VARIABLE = "LIGHTCONV_BACKEND"  # the environment's say where the caller leaves it open


class Layout(TypedDict, total=False):
    """Options of ``light_conv`` and ``dynamic_conv``, for type checkers."""

    normalization: str
    dropconnect: float
    batch_first: bool
    cu_seqlens: Tensor | None
    initial_state: Tensor | None
    bias: Tensor | None
    activation: str | None
    residual: Tensor | None
    backend: str


@overload
def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[False] = False, **options: Unpack[Layout]
) -> Tensor: ...
@overload
def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[True], **options: Unpack[Layout]
) -> tuple[Tensor, Tensor]: ...
def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """LightConv over a whole sequence: x (T, B, C) and logits (H, K) give (T, B, C).

    See ``reference.light_conv`` for the definition.

    Args:
        x: (T, B, C); (B, T, C) with ``batch_first``; (total, C) with ``cu_seqlens``.
        weight: (H, K).
        padding_l, normalization, dropconnect: see the definition.
        batch_first: of x, the result and states; without a copy.
        cu_seqlens: (N + 1,) int32 or int64 on x's device; sentence n is rows cu_seqlens[n] to cu_seqlens[n + 1] of x
            and sees no other. Offsets are checked on a CPU alone. Native code on a CPU reads and writes them as they
            lie; else, and with a state, it costs a copy of x, of DynamicConv's kernels and of the result, and
            max(padding_l, K - 1 - padding_l) further positions a sentence.
        initial_state: (K - 1, B, C), the inputs before the first; padding_l must be K - 1. It costs a copy of x and of
            DynamicConv's kernels. Packed sentences are the B of states.
        return_state: also return the last K - 1 inputs, the next call's initial state.
        bias: (C,), added to the result.
        activation: None, "silu" or "swish", which are the same; after the bias.
        residual: as x, added last; see ``reference.epilogue``.
        backend: see ``choose_backend``.

    Raises:
        ValueError: shapes that do not fit, padding_l outside 0..K-1, dropconnect outside [0, 1), states of a
            convolution that looks ahead, or an unknown normalisation, activation or backend.
    """
    place = Place(batch_first, cu_seqlens, initial_state, return_state)
    epilogue = Epilogue(bias, activation, residual)
    return _run("light_conv", x, weight, padding_l, normalization, dropconnect, place, epilogue, backend)


@overload
def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[False] = False, **options: Unpack[Layout]
) -> Tensor: ...
@overload
def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[True], **options: Unpack[Layout]
) -> tuple[Tensor, Tensor]: ...
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """DynamicConv over a whole sequence: x (T, B, C) and logits (T, B, H, K) give (T, B, C).

    See ``reference.dynamic_conv`` for the definition, and ``light_conv`` for the options. Kernels lie as x does:
    (B, T, H, K) with ``batch_first``, (total, H, K) with ``cu_seqlens``.

    Raises:
        ValueError: as ``light_conv``.
    """
    place = Place(batch_first, cu_seqlens, initial_state, return_state)
    epilogue = Epilogue(bias, activation, residual)
    return _run("dynamic_conv", x, weight, padding_l, normalization, dropconnect, place, epilogue, backend)


def _run(
    operator: str,
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    normalization: str,
    dropconnect: float,
    place: Place,
    epilogue: Epilogue,
    backend: str,
) -> Tensor | tuple[Tensor, Tensor]:
    """Check the arguments and run the backend on one sequence (T, B, C)."""
    dims = "total" if place.cu_seqlens is not None else "B, T" if place.batch_first else "T, B"
    dynamic = operator == "dynamic_conv"
    ndim, shape = (dims.count(",") + 3, f"({dims}, H, K)") if dynamic else (2, "(H, K)")
    check_operands(operator, x, weight, ndim, shape, dims)
    if dynamic and weight.shape[:-2] != x.shape[:-1]:
        raise ValueError(
            f"dynamic_conv: one kernel a position is expected, weight ({dims}, H, K) with {dims} = "
            f"{tuple(x.shape[:-1])} as in x; got weight {tuple(weight.shape)}"
        )
    _check_kernel(operator, weight, padding_l, dropconnect)
    place.check(operator, x, weight.shape[-1], padding_l)
    epilogue.check(operator, x)
    chosen = choose_backend(operator, backend, x, weight)
    options = {"padding_l": padding_l, "normalization": normalization, "dropconnect": dropconnect}
    conv = functools.partial(getattr(chosen, operator), **options)
    if place.plain:
        return epilogue(conv(x, weight))
    found = sequences.convolve(conv, x, weight, padding_l, place, packs=chosen is native and x.is_cpu)
    return epilogue(found) if isinstance(found, Tensor) else (epilogue(found[0]), found[1])


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


def check_operands(
    operator: str, x: Tensor, weight: Tensor, weight_ndim: int, weight_shape: str, dims: str = "T, B"
) -> None:
    """Check what every operator asks of its two tensors; ``dims`` are x's before its channels.

    Raises:
        ValueError: other numbers of dimensions, integers, or heads that do not divide the channels.
    """
    if x.ndim != dims.count(",") + 2 or weight.ndim != weight_ndim:
        raise ValueError(
            f"{operator}: expected x ({dims}, C) and weight {weight_shape}; "
            f"got x {tuple(x.shape)} and weight {tuple(weight.shape)}"
        )
    if not (x.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"{operator}: expected floating-point tensors; got x {x.dtype} and weight {weight.dtype}")
    if not weight.shape[-2] or x.shape[-1] % weight.shape[-2]:
        raise ValueError(f"{operator}: {weight.shape[-2]} heads do not divide the {x.shape[-1]} channels of x")


def _check_kernel(operator: str, weight: Tensor, padding_l: int, dropconnect: float) -> None:
    width = weight.shape[-1]
    if not 0 <= padding_l < width:
        raise ValueError(f"{operator}: padding_l is {padding_l}; a kernel of width {width} takes 0..{width - 1}")
    if not 0.0 <= dropconnect < 1.0:
        raise ValueError(f"{operator}: dropconnect is {dropconnect}; expected 0 <= p < 1")
