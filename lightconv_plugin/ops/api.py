"""LightConv and DynamicConv over whole sequences, for users: arguments are checked once, here."""

from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from lightconv_plugin.ops import autograd, reference, sequences
from lightconv_plugin.ops.backend import choose_backend
from lightconv_plugin.ops.normalization import prepare_kernel

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)


class ConvOptions(TypedDict, total=False):
    """Options of ``light_conv`` and ``dynamic_conv``, for type checkers."""

    normalization: str
    dropconnect: float
    backend: str
    batch_first: bool
    cu_seqlens: Tensor | None
    initial_state: Tensor | None
    return_state: bool
    bias: Tensor | None
    activation: str | None
    residual: Tensor | None


def light_conv(x: Tensor, weight: Tensor, *, padding_l: int, **options: Unpack[ConvOptions]) -> Any:
    """LightConv over a whole sequence: x (T, B, C) and logits (H, K) give (T, B, C).

    See ``reference.light_conv`` for the definition.

    Args:
        x: (T, B, C); (B, T, C) with ``batch_first``; (total, C) with ``cu_seqlens``.
        weight: (H, K).
        padding_l, normalization, dropconnect: see the definition.
        batch_first: of x, the result and states; without a copy. False unless given.
        cu_seqlens: (N + 1,) int32 or int64 on x's device; sentence n is rows cu_seqlens[n] to cu_seqlens[n + 1] of x
            and sees no other. Offsets are checked on a CPU alone. Native code on a CPU reads and writes them as they
            lie; else it costs a copy of x, of DynamicConv's kernels and of the result, and
            max(padding_l, K - 1 - padding_l) further positions a sentence.
        initial_state: (K - 1, B, C), the inputs before the first; padding_l must be K - 1. On a CPU it is read where it
            lies; on a GPU it costs a copy of x and of DynamicConv's kernels. Packed sentences are the B of states.
        return_state: also return the last K - 1 inputs, the next call's initial state. False unless given.
        bias: (C,), added to the result.
        activation: None, "silu" or "swish", which are the same; after the bias.
        residual: as x, added last; see ``reference.epilogue``.
        backend: "auto" unless given; see ``backend.choose_backend``.

    Raises:
        ValueError: shapes that do not fit, padding_l outside 0..K-1, dropconnect outside [0, 1), states of a
            convolution that looks ahead, or an unknown normalisation, activation or backend.
    """
    return _convolve("light_conv", x, weight, padding_l, **options)


def dynamic_conv(x: Tensor, weight: Tensor, *, padding_l: int, **options: Unpack[ConvOptions]) -> Any:
    """DynamicConv over a whole sequence: x (T, B, C) and logits (T, B, H, K) give (T, B, C).

    See ``reference.dynamic_conv`` for the definition, and ``light_conv`` for the options. Kernels lie as x does:
    (B, T, H, K) with ``batch_first``, (total, H, K) with ``cu_seqlens``. Errors are those of ``light_conv``.
    """
    return _convolve("dynamic_conv", x, weight, padding_l, **options)


def _convolve(
    operator: str,
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    *,
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
    """Check the arguments and run the backend on one sequence (T, B, C)."""
    dims = "total" if cu_seqlens is not None else "B, T" if batch_first else "T, B"
    check_operands(operator, x, weight, operator == "dynamic_conv", dims)
    width, channels = weight.shape[-1], x.shape[-1]
    if not 0 <= padding_l < width:
        raise ValueError(f"{operator}: padding_l is {padding_l}; a kernel of width {width} takes 0..{width - 1}")
    if not 0.0 <= dropconnect < 1.0:
        raise ValueError(f"{operator}: dropconnect is {dropconnect}; expected 0 <= p < 1")
    plain = cu_seqlens is initial_state is bias is activation is residual is None and not (batch_first or return_state)
    if not plain:
        if activation not in (None, "silu", "swish"):
            raise ValueError(f"{operator}: activation is {activation!r}; expected None, 'silu' or 'swish'")
        check_tensor(operator, "bias", bias, (channels,), FLOATS, x.device)
        check_tensor(operator, "residual", residual, x.shape, FLOATS, x.device)
        check_tensor(operator, "cu_seqlens", cu_seqlens, ("N",), INTEGERS, x.device)
        if cu_seqlens is not None and cu_seqlens.is_cpu and not torch.compiler.is_compiling():
            offsets = cu_seqlens.tolist()
            if not offsets or offsets[0] != 0 or offsets[-1] != len(x) or offsets != sorted(offsets):
                raise ValueError(
                    f"{operator}: cu_seqlens must rise from 0 to the {len(x)} rows of x; got {offsets[:9]}"
                )
        if (initial_state is not None or return_state) and padding_l != width - 1:
            raise ValueError(
                f"{operator}: only a causal convolution, padding_l = K - 1 = {width - 1}, has a state; "
                f"got padding_l = {padding_l}"
            )
        sentences = cu_seqlens.shape[0] - 1 if cu_seqlens is not None else x.shape[0 if batch_first else 1]
        before = (sentences, width - 1) if batch_first else (width - 1, sentences)
        check_tensor(operator, "initial_state", initial_state, (*before, channels), (x.dtype,), x.device)
    native = choose_backend(operator, backend, x, weight) == "native"
    conv = partial(
        partial(_native, operator) if native else getattr(reference, operator),
        padding_l=padding_l,
        normalization=normalization,
        dropconnect=dropconnect,
    )
    if plain:
        return conv(x, weight)
    out, state = sequences.convolve(
        conv,
        x,
        weight,
        padding_l,
        batch_first=batch_first,
        offsets=cu_seqlens,
        state=initial_state,
        return_state=return_state,
        native=native,
    )
    out = reference.epilogue(out, bias, activation, residual)
    return out if state is None else (out, state)


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
    out = autograd.conv(x, weight, padding_l, softmax, dropconnect, seed, offsets, initial_state)
    return out if out.dtype == dtype else out.to(dtype)


def check_operands(operator: str, x: Tensor, weight: Tensor, dynamic: bool, dims: str = "T, B") -> None:
    """Check x (dims, C) and weight (H, K) or, dynamic, (dims, H, K): what every operator asks of its two tensors.

    Raises:
        ValueError: other shapes, integers, floats of 8 bits, two devices, or heads that do not divide the channels.
    """
    kernels, places = f"({dims}, H, K)" if dynamic else "(H, K)", dims.count(",") + 1
    fits = x.ndim == places + 1 and weight.ndim == (places + 2 if dynamic else 2)
    if not fits or x.dtype not in FLOATS or weight.dtype not in FLOATS or x.device != weight.device:
        raise ValueError(
            f"{operator}: expected x ({dims}, C) and weight {kernels}, floating-point of at least 16 bits, on one "
            f"device; got x {tuple(x.shape)}, {x.dtype} on {x.device}, "
            f"and weight {tuple(weight.shape)}, {weight.dtype} on {weight.device}"
        )
    if dynamic and weight.shape[:-2] != x.shape[:-1]:
        raise ValueError(
            f"{operator}: one kernel a position is expected, weight {kernels} with {dims} = {tuple(x.shape[:-1])} as "
            f"in x; got weight {tuple(weight.shape)}"
        )
    if not weight.shape[-2] or x.shape[-1] % weight.shape[-2]:
        raise ValueError(f"{operator}: {weight.shape[-2]} heads do not divide the {x.shape[-1]} channels of x")


def check_tensor(
    operator: str,
    name: str,
    given: Tensor | None,
    shape: tuple[int | str, ...],
    types: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Check a tensor that may be left out; "N" in ``shape`` is any size.

    Raises:
        ValueError: another shape, type or device.
    """
    if given is None:
        return
    fits = given.ndim == len(shape) and all(n in (m, "N") for n, m in zip(shape, given.shape, strict=True))
    if not fits or given.dtype not in types or given.device != device:
        sizes = str(tuple(shape)).replace("'", "")
        raise ValueError(
            f"{operator}: {name} is expected as {sizes}, {' or '.join(map(str, types))} on {device}; "
            f"got {tuple(given.shape)}, {given.dtype} on {given.device}"
        )
