"""``scripts.bench ops``: times of the convolutions and of other libraries' operators, forward and with backward.

Each operator runs under its best conditions: with parameters and inputs in its own layout, and without copies.
"""

import contextlib
import importlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from scripts.bench.timing import Row, median_times

CONVOLUTIONS = {"light": ops.light_conv, "dynamic": ops.dynamic_conv}
OURS = "ours"
# a kernel for each channel, H = C, as in today's linear-attention blocks
BY_CHANNEL = [(2048, 1, 3072, 4), (128, 8, 512, 4)]  # T, B, C, K
LARGEST_BAND = 2**31  # bytes; fairseq's band mode is left out if its matrix is larger
LAYERS = {
    "light": ("lightweight_convolution", "LightweightConv1dTBC"),
    "dynamic": ("dynamic_convolution", "DynamicConv1dTBC"),
    "light cuda": ("lightconv_layer", "LightconvLayer"),
    "dynamic cuda": ("dynamicconv_layer", "DynamicconvLayer"),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a convolution: x has shape (T, B, C), and there are H kernels of width K."""

    T: int
    B: int
    C: int
    H: int
    K: int
    causal: bool = False

    @property
    def padding_l(self) -> int:
        return self.K - 1 if self.causal else self.K // 2


class Case(NamedTuple):
    """A forward pass, and the tensors whose gradients are computed; the first has the shape of the output."""

    run: Callable[[], Tensor]
    inputs: list[Tensor]

    def timed(self, backward: bool) -> Callable[[], object]:
        """Return the function to time: the forward pass without a graph, or forward and backward."""
        if not backward:
            return torch.no_grad()(self.run)
        gradient = torch.randn_like(self.inputs[0])
        return lambda: torch.autograd.grad(self.run(), self.inputs, gradient)


class FixedKernels(nn.Module):
    """A stand-in for the predictor of kernels that returns fixed logits, so that the operator alone is timed."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.out_features = logits.shape[2:].numel()  # fairseq's module reads it

    def forward(self, query: Tensor) -> Tensor:
        return self.logits


def fairseq_layer(kind: str, shape: Shape, x: Tensor, kernels: Tensor) -> tuple[nn.Module, Tensor]:
    """Return fairseq's convolution of a kind in ``LAYERS``, and its weight, which for DynamicConv is ``kernels``.

    Raises:
        ImportError: fairseq's own CUDA kernels are not installed; they have to be compiled by hand.
    """
    module, name = LAYERS[kind]
    layer_class = getattr(importlib.import_module(f"fairseq.modules.{module}"), name)
    options = {"padding_l": shape.padding_l, "num_heads": shape.H, "weight_softmax": True, "bias": False}
    layer = layer_class(shape.C, shape.K, **options).to(x)
    if kind.startswith("light"):
        return layer, layer.weight
    layer.weight_linear = FixedKernels(kernels.flatten(2) if kind.endswith("cuda") else kernels)
    return layer, kernels


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Yield the tables of ``ops``: with kernels shared by the channels of a head, then with one for each channel."""
    yield measure(args, device)
    yield measure_by_channel(args, device)


def measure(args: Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each operator, length and pass.

    A ratio is the other operator's time divided by ours; for fairseq it is the time of its fastest mode.
    """
    dtype = getattr(torch, args.dtype)
    for operator, T, backward in product(CONVOLUTIONS, args.lengths, (False, True)):
        shape = Shape(T, max(1, args.tokens // T), args.channels, args.heads, args.kernel, args.causal)
        built = cases(operator, shape, dtype, device)
        if shape.B * shape.H * T * (T + shape.K) * dtype.itemsize > LARGEST_BAND:
            del built["fairseq band"]
        times = median_times({name: case.timed(backward) for name, case in built.items()}, args.seconds)
        ours, mode = times[OURS], min((name for name in times if name.startswith("fairseq")), key=times.__getitem__)
        yield [
            ("operator", "{}", operator),
            ("pass", "{}", "fwd+bwd" if backward else "fwd"),
            ("T", "{}", T),
            ("B", "{}", shape.B),
            ("ours ms", "{:.2f}", ours * 1e3),
            ("fairseq ms", "{:.2f}", times[mode] * 1e3),
            ("its mode", "{}", mode.removeprefix("fairseq ")),
            ("ratio", "{:.1f}x", times[mode] / ours),
            *((name, "{:.1f}x", times[name] / ours if name in times else None) for name in ("conv1d", "sdpa")),
        ]


def cases(operator: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Case]:
    """Return this project's operator, one of ``CONVOLUTIONS``, under ``OURS``, and the others by their names."""
    T, B, C, H, K = shape.T, shape.B, shape.C, shape.H, shape.K
    padding = shape.padding_l, K - 1 - shape.padding_l

    def random(*size: int) -> Tensor:
        return torch.randn(size, device=device, dtype=dtype, requires_grad=True)

    x, kernels = random(T, B, C), random(*(() if operator == "light" else (T, B)), H, K)
    result = {OURS: Case(partial(CONVOLUTIONS[operator], x, kernels, padding_l=padding[0]), [x, kernels])}
    for name, unfold in (("fairseq band", False), ("fairseq unfold", True)):
        layer, weight = fairseq_layer(operator, shape, x, kernels)
        result[name] = Case(partial(layer, x, unfold=unfold), [x, weight])
    # for any other width fairseq's kernels compute nothing, and only print a warning
    if device.type == "cuda" and dtype != torch.bfloat16 and K in (3, 5, 7, 15, 31, 63, 127, 255):
        with contextlib.suppress(ImportError):
            layer, weight = fairseq_layer(f"{operator} cuda", shape, x, kernels)
            result["fairseq cuda"] = Case(partial(layer, x), [x, weight])
    if operator == "light":  # with the softmax, and in the layout of F.conv1d
        rows, taps = random(B * C // H, H, T), random(H, 1, K)

        def conv1d() -> Tensor:
            if padding[0] == padding[1]:
                return F.conv1d(rows, taps.softmax(-1), padding=padding[0], groups=H)
            return F.conv1d(F.pad(rows, padding), taps.softmax(-1), groups=H)

        result["conv1d"] = Case(conv1d, [rows, taps])
    # attention with the same heads over the whole sentence, without its projections
    q, k, v = (random(B, H, T, C // H) for _ in range(3))
    result["sdpa"] = Case(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal), [q, k, v])
    return result


def measure_by_channel(args: Namespace, device: torch.device) -> Iterator[Row]:
    """Yield a row for each operator, size in ``BY_CHANNEL`` and pass.

    It has the naive implementation's time divided by ours, and ours divided by that of a copy.
    """
    dtype = getattr(torch, args.dtype)
    for operator, (T, B, C, K), backward in product(CONVOLUTIONS, BY_CHANNEL, (False, True)):
        shape = Shape(T, B, C, C, K, causal=True)
        built = cases_by_channel(operator, shape, dtype, device)
        calls: dict[str, Callable[[], object]] = {name: case.timed(backward) for name, case in built.items()}
        calls["copy"] = copy_of(built[OURS], backward)
        times = median_times(calls, args.seconds)
        yield [
            ("H = C, K = 4", "{}", operator),
            ("pass", "{}", "fwd+bwd" if backward else "fwd"),
            ("T", "{}", T),
            ("B", "{}", B),
            ("C", "{}", C),
            ("ours ms", "{:.2f}", times[OURS] * 1e3),
            ("naive", "{:.1f}x", times["naive"] / times[OURS]),
            ("copy ms", "{:.2f}", times["copy"] * 1e3),
            ("time / the copy's", "{:.2f}", times[OURS] / times["copy"]),
        ]


def cases_by_channel(operator: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Case]:
    """Return the operator, batch first and with kernels that are not normalised, and the same with ``unfold``."""
    x = torch.randn(shape.B, shape.T, shape.C, device=device, dtype=dtype, requires_grad=True)
    positions = () if operator == "light" else x.shape[:2]
    kernels = torch.randn(*positions, shape.H, shape.K, device=device, dtype=dtype, requires_grad=True)
    options = {"padding_l": shape.padding_l, "normalization": "none", "batch_first": True}

    def naive() -> Tensor:
        windows = F.pad(x, (0, 0, shape.padding_l, 0)).unfold(1, shape.K, 1)  # (B, T, C, K)
        return (windows * kernels).sum(-1)

    inputs = [x, kernels]
    return {OURS: Case(partial(CONVOLUTIONS[operator], *inputs, **options), inputs), "naive": Case(naive, inputs)}


def copy_of(case: Case, backward: bool) -> Callable[[], list[Tensor]]:
    """Return a function that copies each tensor that the pass must read or write into memory allocated beforehand.

    The forward pass has the inputs and the result; the backward pass also has the result's gradient, the inputs again,
    and their gradients.
    """
    x, kernels = (tensor.detach() for tensor in case.inputs)
    tensors = [x, kernels, x] + ([x, x, kernels, x, kernels] if backward else [])
    pairs = [(tensor, torch.zeros_like(tensor)) for tensor in tensors]
    return lambda: [to.copy_(tensor) for tensor, to in pairs]
