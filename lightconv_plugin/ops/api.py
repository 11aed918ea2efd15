"""Public functions for LightConv and DynamicConv over whole sequences, and the checks of their arguments."""

from functools import partial
from typing import Literal, get_args, overload

import torch
from torch import Tensor

from lightconv_plugin.ops import autograd, reference, sequences
from lightconv_plugin.ops.backend import Backend, choose_backend
from lightconv_plugin.ops.checks import check_choice, check_probability, check_whole, describe
from lightconv_plugin.ops.normalization import Normalization, prepare_kernel

Activation = Literal["silu", "swish"]

ACTIVATIONS = (None, *get_args(Activation))
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64)
ANY_SIZE = None  # in the shapes that check_tensor expects: a dimension of any size


@overload
def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: Literal[False] = False,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor: ...
@overload
def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: Literal[True],
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]: ...
@overload
def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...
def light_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """LightConv over a whole sequence: x (T, B, C) and logits (H, K) give (T, B, C).

    See ``ops.reference.light_conv`` for the equation.

    Args:
        x: (T, B, C); (B, T, C) with ``batch_first``; (total, C) with ``cu_seqlens``.
        weight: (H, K).
        padding_l: number of zeros before the first position, 0..K-1. With K - 1 the convolution is causal; with K // 2
            it looks to both sides.
        normalization: normalisation of the kernels over K, a name in ``ops.NORMALIZATIONS``.
        dropconnect: probability with which a normalised weight is dropped; 0 outside training.
        batch_first: x, the result and states have the batch in dimension 0. This costs no copy.
        cu_seqlens: (N + 1,) int32 or int64 on x's device, offsets of N packed sentences: sentence n is rows
            cu_seqlens[n] to cu_seqlens[n + 1] of x, and does not see the other sentences. The values are checked where
            they can be read without waiting for a GPU. Native code on a CPU needs no copy. Other backends copy x,
            DynamicConv's kernels and the result, and compute max(padding_l, K - 1 - padding_l) further positions for
            each sentence.
        initial_state: (K - 1, B, C), the inputs before the first position, in place of zeros; padding_l must be K - 1.
            B is N for packed sentences. On a GPU a state costs a copy of x and of DynamicConv's kernels.
        return_state: also return the last K - 1 inputs, the initial state of the next call.
        bias: (C,), added to the result.
        activation: "silu" or "swish" (two names of one function), applied after the bias.
        residual: of x's shape, added last; see ``ops.reference.epilogue``.
        backend: "auto", or the name of the backend that must run; see ``ops.choose_backend``.

    Returns:
        A tensor of x's shape and type. With ``return_state``, also the state: (K - 1, B, C), or (B, K - 1, C) with
        ``batch_first``.

    Raises:
        ValueError: shapes that do not fit, padding_l outside 0..K-1, dropconnect outside [0, 1), a state for a
            convolution that is not causal, an unknown normalisation, activation or backend, or a call that the
            requested backend does not support.
        TypeError: padding_l is not a whole number, or dropconnect is not a number.
    """
    return _convolve(
        "light_conv",
        x,
        weight,
        padding_l=padding_l,
        normalization=normalization,
        dropconnect=dropconnect,
        batch_first=batch_first,
        cu_seqlens=cu_seqlens,
        initial_state=initial_state,
        return_state=return_state,
        bias=bias,
        activation=activation,
        residual=residual,
        backend=backend,
    )


@overload
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: Literal[False] = False,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor: ...
@overload
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: Literal[True],
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]: ...
@overload
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization = "softmax",
    dropconnect: float = 0.0,
    batch_first: bool = False,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """DynamicConv over a whole sequence: x (T, B, C) and logits (T, B, H, K) give (T, B, C).

    See ``ops.reference.dynamic_conv`` for the equation, and ``light_conv`` for the arguments and errors. ``weight`` has
    the layout of x: (B, T, H, K) with ``batch_first``, (total, H, K) with ``cu_seqlens``.
    """
    return _convolve(
        "dynamic_conv",
        x,
        weight,
        padding_l=padding_l,
        normalization=normalization,
        dropconnect=dropconnect,
        batch_first=batch_first,
        cu_seqlens=cu_seqlens,
        initial_state=initial_state,
        return_state=return_state,
        bias=bias,
        activation=activation,
        residual=residual,
        backend=backend,
    )


def _convolve(
    operator: str,
    x: Tensor,
    weight: Tensor,
    *,
    padding_l: int,
    normalization: Normalization,
    dropconnect: float,
    batch_first: bool,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
    return_state: bool,
    bias: Tensor | None,
    activation: Activation | None,
    residual: Tensor | None,
    backend: Backend,
) -> Tensor | tuple[Tensor, Tensor]:
    """Check the arguments, choose the backend and run it; ``light_conv`` describes the arguments."""
    packed = cu_seqlens is not None
    dims = "total" if packed else "B, T" if batch_first else "T, B"
    check_operands(operator, x, weight, operator == "dynamic_conv", dims)
    width, channels = weight.shape[-1], x.shape[-1]
    if type(padding_l) is not int:
        check_whole(f"{operator}: padding_l", padding_l)
    if not 0 <= padding_l < width:
        raise ValueError(f"{operator}: padding_l is {padding_l}; a kernel of width {width} takes 0..{width - 1}")
    if dropconnect != 0.0:
        check_probability(f"{operator}: dropconnect", dropconnect)
    plain = initial_state is bias is activation is residual is None and not (packed or batch_first or return_state)
    if not plain:
        check_epilogue(operator, x, bias, activation, residual)
        check_tensor(operator, "cu_seqlens", cu_seqlens, (ANY_SIZE,), INTEGERS, x.device)
        if cu_seqlens is not None:
            _check_offsets(operator, cu_seqlens, x.shape[0])
        if (initial_state is not None or return_state) and padding_l != width - 1:
            raise ValueError(
                f"{operator}: only a causal convolution, padding_l = K - 1 = {width - 1}, has a state; "
                f"got padding_l = {padding_l}"
            )
        sentences: int | None = x.shape[0 if batch_first else 1] if cu_seqlens is None else _sentences(cu_seqlens)
        inputs = (sentences, width - 1) if batch_first else (width - 1, sentences)
        check_tensor(operator, "initial_state", initial_state, (*inputs, channels), (x.dtype,), x.device)
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
    normalization: Normalization,
    dropconnect: float,
    offsets: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> Tensor:
    """Run the library's operator. Shapes are those of ``reference``, or on a CPU of packed sentences x (T, 1, C)."""
    dtype = x.dtype
    if operator == "dynamic_conv" and weight.dtype != dtype:
        # Gradients must keep the kernels' type: rounded to x's type, they would not cancel in the derivative of the
        # normalisation.
        x = x.to(torch.promote_types(dtype, weight.dtype))
        initial_state = None if initial_state is None else initial_state.to(x.dtype)
    weight, softmax = prepare_kernel(weight, normalization, x.dtype)
    # the seed is drawn on x's device, so that each replay of a captured CUDA graph draws a new seed
    seed = torch.randint(2**62, (1,), device=x.device) if dropconnect > 0.0 else None
    out = autograd.conv(x, weight, padding_l, softmax, dropconnect, seed, offsets, initial_state)
    return out if out.dtype == dtype else out.to(dtype)


def check_operands(operator: str, x: Tensor, weight: Tensor, dynamic: bool, dims: str = "T, B") -> None:
    """Check the tensors of a convolution: x (dims, C) and weight (H, K), or (dims, H, K) if ``dynamic``.

    Raises:
        ValueError: an argument is not a dense tensor of floating-point numbers of at least 16 bits; a shape is wrong;
            the tensors are on two devices; or the number of heads does not divide the number of channels.
    """
    kernels, positions = f"({dims}, H, K)" if dynamic else "(H, K)", dims.count(",") + 1
    fits = (
        isinstance(x, Tensor)
        and isinstance(weight, Tensor)
        and x.ndim == positions + 1
        and weight.ndim == (positions + 2 if dynamic else 2)
        and x.layout is weight.layout is torch.strided
        and x.dtype in FLOATS
        and weight.dtype in FLOATS
        and x.device == weight.device
    )
    if not fits:
        is_nested = isinstance(x, Tensor) and x.layout is torch.jagged
        hint = ". A nested tensor has packed sentences: x.values(), with cu_seqlens=x.offsets()" if is_nested else ""
        raise ValueError(
            f"{operator}: expected x ({dims}, C) and weight {kernels}, dense, floating-point of at least 16 bits, on "
            f"one device; got x {describe(x)}, and weight {describe(weight)}{hint}"
        )
    if dynamic and weight.shape[:-2] != x.shape[:-1]:
        raise ValueError(
            f"{operator}: expected one kernel per position: weight {kernels} with {dims} = {tuple(x.shape[:-1])} as "
            f"in x; got weight {tuple(weight.shape)}"
        )
    if not weight.shape[-2] or x.shape[-1] % weight.shape[-2]:
        raise ValueError(f"{operator}: {weight.shape[-2]} heads do not divide the {x.shape[-1]} channels of x")


def check_epilogue(
    operator: str, x: Tensor, bias: Tensor | None, activation: Activation | None, residual: Tensor | None
) -> None:
    """Check the arguments of ``reference.epilogue`` for a convolution of x.

    Raises:
        ValueError: an unknown activation, or a tensor of a wrong shape, type or device.
    """
    check_choice(f"{operator}: activation", activation, ACTIVATIONS)
    check_tensor(operator, "bias", bias, (x.shape[-1],), FLOATS, x.device)
    check_tensor(operator, "residual", residual, x.shape, FLOATS, x.device)


def check_tensor(
    operator: str,
    name: str,
    tensor: Tensor | None,
    shape: tuple[int | None, ...],
    types: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Check an optional tensor. None is valid, and ``ANY_SIZE`` in ``shape`` stands for any size.

    Raises:
        ValueError: the shape, type or device is wrong, or the argument is not a tensor.
    """
    if tensor is None:
        return
    fits = (
        isinstance(tensor, Tensor)
        and tensor.ndim == len(shape)
        and all(size is ANY_SIZE or size == length for size, length in zip(shape, tensor.shape, strict=True))
        and tensor.dtype in types
        and tensor.device == device
    )
    if not fits:
        sizes = ", ".join("N" if size is ANY_SIZE else str(size) for size in shape)
        raise ValueError(
            f"{operator}: {name} is expected as ({sizes}{',' if len(shape) == 1 else ''}), "
            f"{' or '.join(map(str, types))} on {device}; got {describe(tensor)}"
        )


def _sentences(cu_seqlens: Tensor) -> int | None:
    """Return the number of packed sentences, or ``ANY_SIZE`` while a program is recorded.

    A comparison of this number with another size would restrict the recorded program to the sizes it was recorded with.
    """
    return ANY_SIZE if autograd.recording() else cu_seqlens.shape[0] - 1


def _check_offsets(operator: str, cu_seqlens: Tensor, rows: int) -> None:
    """Check the values of the offsets of packed sentences, if they can be read without waiting for a GPU.

    Raises:
        ValueError: the offsets do not rise from 0 to the number of rows.
    """
    if cu_seqlens.is_cpu and autograd.has_values(cu_seqlens):
        offsets = cu_seqlens.tolist()
        if not offsets or offsets[0] != 0 or offsets[-1] != rows or offsets != sorted(offsets):
            raise ValueError(f"{operator}: cu_seqlens must rise from 0 to the {rows} rows of x; got {offsets[:9]}")
