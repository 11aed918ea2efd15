"""LightConv and DynamicConv over whole sequences, for users: arguments are checked once, here."""

from functools import partial
from operator import index
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from lightconv_plugin.ops import autograd, reference, sequences
from lightconv_plugin.ops.backend import choose_backend
from lightconv_plugin.ops.normalization import prepare_kernel
from lightconv_plugin.ops.sequences import Place


class SequenceOptions(TypedDict, total=False):
    """Options of a call of the modules, for type checkers."""

    batch_first: bool
    cu_seqlens: Tensor | None
    initial_state: Tensor | None
    bias: Tensor | None
    activation: str | None
    residual: Tensor | None


class ConvOptions(SequenceOptions, total=False):
    """Options of ``light_conv`` and ``dynamic_conv``, for type checkers."""

    normalization: str
    dropconnect: float
    backend: str


@overload
def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[False] = False, **options: Unpack[ConvOptions]
) -> Tensor: ...
@overload
def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[True], **options: Unpack[ConvOptions]
) -> tuple[Tensor, Tensor]: ...
@overload
def light_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: bool, **options: Unpack[ConvOptions]
) -> Tensor | tuple[Tensor, Tensor]: ...
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
            lie; else it costs a copy of x, of DynamicConv's kernels and of the result, and
            max(padding_l, K - 1 - padding_l) further positions a sentence.
        initial_state: (K - 1, B, C), the inputs before the first; padding_l must be K - 1. On a CPU it is read where it
            lies; on a GPU it costs a copy of x and of DynamicConv's kernels. Packed sentences are the B of states.
        return_state: also return the last K - 1 inputs, the next call's initial state.
        bias: (C,), added to the result.
        activation: None, "silu" or "swish", which are the same; after the bias.
        residual: as x, added last; see ``reference.epilogue``.
        backend: see ``backend.choose_backend``.

    Raises:
        ValueError: shapes that do not fit, padding_l outside 0..K-1, dropconnect outside [0, 1), states of a
            convolution that looks ahead, or an unknown normalisation, activation or backend.
        TypeError: what should be a tensor is none.
    """
    place, epilogue = Place(batch_first, cu_seqlens, initial_state, return_state), (bias, activation, residual)
    return _run("light_conv", x, weight, padding_l, normalization, dropconnect, place, epilogue, backend)


@overload
def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[False] = False, **options: Unpack[ConvOptions]
) -> Tensor: ...
@overload
def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: Literal[True], **options: Unpack[ConvOptions]
) -> tuple[Tensor, Tensor]: ...
@overload
def dynamic_conv(
    x: Tensor, weight: Tensor, *, padding_l: int, return_state: bool, **options: Unpack[ConvOptions]
) -> Tensor | tuple[Tensor, Tensor]: ...
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
        ValueError, TypeError: as ``light_conv``.
    """
    place, epilogue = Place(batch_first, cu_seqlens, initial_state, return_state), (bias, activation, residual)
    return _run("dynamic_conv", x, weight, padding_l, normalization, dropconnect, place, epilogue, backend)


def _run(
    operator: str,
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    normalization: str,
    dropconnect: float,
    place: Place,
    epilogue: tuple[Tensor | None, str | None, Tensor | None],
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
    width = weight.shape[-1]
    if not isinstance(padding_l, (int, torch.SymInt)) and hasattr(padding_l, "__index__"):
        padding_l = index(padding_l)  # of numpy, or a tensor of one number
    if not isinstance(padding_l, (int, torch.SymInt)) or not 0 <= padding_l < width:
        raise ValueError(f"{operator}: padding_l is {padding_l!r}; a kernel of width {width} takes 0..{width - 1}")
    if not 0.0 <= dropconnect < 1.0:
        raise ValueError(f"{operator}: dropconnect is {dropconnect}; expected 0 <= p < 1")
    (bias, activation, residual), plain = epilogue, place.plain
    finishes = bias is not None or activation is not None or residual is not None
    if finishes or not plain:
        check_tensors(
            operator, cu_seqlens=place.cu_seqlens, initial_state=place.initial_state, bias=bias, residual=residual
        )
        place.check(operator, x, width, padding_l)
    if finishes:
        _check_epilogue(operator, x, *epilogue)
    native = choose_backend(operator, backend, x, weight) == "native"
    conv = partial(
        partial(_native, operator) if native else getattr(reference, operator),
        padding_l=padding_l,
        normalization=normalization,
        dropconnect=dropconnect,
    )
    found = conv(x, weight) if plain else sequences.convolve(conv, x, weight, padding_l, place, native=native)
    if not finishes:
        return found
    if isinstance(found, Tensor):
        return reference.epilogue(found, *epilogue)
    return reference.epilogue(found[0], *epilogue), found[1]


def _native(
    operator: str,
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: str,
    dropconnect: float,
    offsets: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> Tensor:
    """Run the library, which takes the call. Shapes are those of ``reference``; on a CPU also packed (T, 1, C)."""
    dtype = x.dtype
    if operator == "dynamic_conv" and weight.dtype != dtype:
        # rounded to x's type, the gradients of kernels would not cancel in the normalisation's derivative
        x = x.to(torch.promote_types(dtype, weight.dtype))
        initial_state = None if initial_state is None else initial_state.to(x.dtype)
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    # drawn on x's device, so that a captured CUDA graph draws anew at every replay
    seed = torch.randint(2**62, (1,), device=x.device) if dropconnect > 0.0 else None
    out = autograd.conv(x, initial_state, weight, softmax, operator, padding_l, dropconnect, seed, offsets)
    return out if out.dtype == dtype else out.to(dtype)


def check_operands(
    operator: str, x: Tensor, weight: Tensor, weight_ndim: int, weight_shape: str, dims: str = "T, B"
) -> None:
    """Check what every operator asks of its two tensors; ``dims`` are x's before its channels.

    Raises:
        ValueError: nested tensors, other numbers of dimensions, integers, floats of 8 bits, two devices, no weights, or
            heads that do not divide the channels.
        TypeError: what is no tensor.
    """
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        raise TypeError(
            f"{operator}: expected tensors x ({dims}, C) and weight {weight_shape}; "
            f"got {type(x).__name__} and {type(weight).__name__}"
        )
    if x.is_nested:
        raise ValueError(f"{operator}: a nested tensor is packed sentences: x.values(), and cu_seqlens=x.offsets()")
    if x.ndim != dims.count(",") + 2 or weight.ndim != weight_ndim:
        raise ValueError(
            f"{operator}: expected x ({dims}, C) and weight {weight_shape}; "
            f"got x {tuple(x.shape)} and weight {tuple(weight.shape)}"
        )
    floating = x.is_floating_point() and weight.is_floating_point()
    if not floating or x.dtype.itemsize == 1 or weight.dtype.itemsize == 1:
        raise ValueError(
            f"{operator}: expected floating-point tensors of at least 16 bits; "
            f"got x {x.dtype} and weight {weight.dtype}"
        )
    if x.device != weight.device:
        raise ValueError(f"{operator}: expected x and weight on one device; got {x.device} and {weight.device}")
    if not weight.shape[-1]:
        raise ValueError(f"{operator}: expected kernels of one weight at least; got weight {tuple(weight.shape)}")
    if not weight.shape[-2] or x.shape[-1] % weight.shape[-2]:
        raise ValueError(f"{operator}: {weight.shape[-2]} heads do not divide the {x.shape[-1]} channels of x")


def check_tensors(operator: str, **given: object) -> None:
    """Refuse what is neither a tensor nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{operator}: {name} is expected as a tensor; got {type(value).__name__}")


def _check_epilogue(
    operator: str, x: Tensor, bias: Tensor | None, activation: str | None, residual: Tensor | None
) -> None:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"{operator}: activation is {activation!r}; expected None, 'silu' or 'swish'")
    for name, given, shape in (("bias", bias, x.shape[-1:]), ("residual", residual, x.shape)):
        if given is None:
            continue
        if given.shape != shape or given.device != x.device or not given.is_floating_point():
            raise ValueError(
                f"{operator}: {name} is expected as {tuple(shape)}, floating-point on {x.device}; "
                f"got {tuple(given.shape)}, {given.dtype} on {given.device}"
            )
