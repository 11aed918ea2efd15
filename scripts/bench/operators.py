"""``scripts.bench ops``: the convolutions beside their peers, forward and forward with backward.

The peers run as they are at their best: their own parameters, their own layout, nothing copied for them.
"""

import contextlib
import importlib.util
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.modules import DynamicConv
from scripts.bench.timing import Row, median_times
from scripts.common.errors import UserError

OPERATORS = ["light", "dynamic", "dynamic module"]  # kernels given, or predicted by a linear map
OURS = "ours"
CONVOLUTIONS = {"light": ops.light_conv, "dynamic": ops.dynamic_conv}
LARGEST_BAND = 2**31  # bytes of fairseq's band matrix beyond which that mode is left out
LAYERS = {
    "light": ("lightweight_convolution", "LightweightConv1dTBC"),
    "dynamic": ("dynamic_convolution", "DynamicConv1dTBC"),
    "light cuda": ("lightconv_layer", "LightconvLayer"),
    "dynamic cuda": ("dynamicconv_layer", "DynamicconvLayer"),
}


@dataclass(frozen=True)
class Shape:
    """One size of the convolution: x is (T, B, C), kernels are H of K."""

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
    """A forward pass, and the tensors that gradients are taken of; the first has the shape of the output."""

    run: Callable[[], Tensor]
    inputs: list[Tensor]

    def timed(self, backward: bool) -> Callable[[], object]:
        """The forward pass without a graph, or forward and backward."""
        if not backward:
            return torch.no_grad()(self.run)
        gradient = torch.randn_like(self.inputs[0])
        return lambda: torch.autograd.grad(self.run(), self.inputs, gradient)


class FixedKernels(nn.Module):
    """In place of a predictor of kernels: the kernels' logits themselves, so that the operator alone is timed."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.out_features = logits.shape[2:].numel()  # the module asks for it

    def forward(self, query: Tensor) -> Tensor:
        return self.logits


def fairseq_layer(kind: str, shape: Shape, x: Tensor, logits: Tensor | None = None) -> tuple[nn.Module, Tensor]:
    """fairseq's convolution of a kind in ``LAYERS``, and its weight: the logits, if they are given.

    Raises:
        ImportError: fairseq's own CUDA kernels are not installed; they have to be compiled by hand.
    """
    place, name = LAYERS[kind]
    made = getattr(importlib.import_module(f"fairseq.modules.{place}"), name)
    options = {"padding_l": shape.padding_l, "num_heads": shape.H, "weight_softmax": True, "bias": False}
    layer = made(shape.C, shape.K, **options).to(x)
    if logits is None:
        return layer, layer.weight if kind.startswith("light") else layer.weight_linear.weight
    layer.weight_linear = FixedKernels(logits.flatten(2) if kind.endswith("cuda") else logits)
    return layer, logits


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Return what ``ops`` measures.

    Raises:
        UserError: options that do not go together.
    """
    chosen = args.operators.split(",")
    if unknown := set(chosen) - set(OPERATORS):
        raise UserError(f"no operator {', '.join(sorted(unknown))}; choose from {', '.join(OPERATORS)}")
    if args.channels % args.heads:
        raise UserError(f"--heads {args.heads} does not divide --channels {args.channels}; choose a divisor")
    if args.kernel % 2 == 0 and not args.causal:
        raise UserError(f"--kernel {args.kernel} is even, so it has no middle; choose an odd width, or add --causal")
    sizes = [(T, max(1, args.tokens // T)) for T in args.lengths]
    shapes = [Shape(T, B, args.channels, args.heads, args.kernel, args.causal) for T, B in sizes]
    measured = Measured(chosen, shapes, getattr(torch, args.dtype), device, args.seconds)
    if args.layouts:
        if "dynamic module" in chosen:
            raise UserError("--layouts times the operators alone; add --operators light,dynamic")
        yield measured.beside_layouts()
    else:
        yield measured.alone() if args.no_peers else measured.beside_peers()


@dataclass(frozen=True)
class Measured:
    """Operators in several shapes, as each of the tables shows them: a row for each operator, shape and pass."""

    operators: list[str]
    shapes: list[Shape]
    dtype: torch.dtype
    device: torch.device
    seconds: float = 0.0

    def passes(self) -> Iterator[tuple[str, Shape, bool]]:
        """Each operator in each shape, forward, and then with backward."""
        return product(self.operators, self.shapes, (False, True))

    def times(self, built: dict[Any, Case], backward: bool) -> dict[Any, float]:
        """Seconds of one pass of each case."""
        return median_times({name: case.timed(backward) for name, case in built.items()}, self.seconds)

    def random(self, *size: int) -> Tensor:
        """Random numbers that gradients are taken of."""
        return torch.randn(size, device=self.device, dtype=self.dtype, requires_grad=True)

    def beside_peers(self) -> Iterator[Row]:
        """The ratios are the time of fairseq's fastest mode, and of the other peers, over this project's."""
        for operator, shape, backward in self.passes():
            built = self.cases(operator, shape)
            if shape.B * shape.H * shape.T * (shape.T + shape.K) * self.dtype.itemsize > LARGEST_BAND:
                del built["fairseq band"]
            times = self.times(built, backward)
            ours, (mode, theirs) = times[OURS], _best_of_fairseq(times)
            yield [
                *_about(operator, shape, backward),
                ("ours ms", "{:.2f}", ours * 1e3),
                ("fairseq ms", "{:.2f}", theirs * 1e3),
                ("its mode", "{}", mode),
                ("ratio", "{:.1f}x", theirs / ours),
                *(
                    (name, "{:.1f}x", times[name] / ours if name in times else None)
                    for name in ("conv1d", "causal-conv1d", "sdpa")
                ),
            ]

    def alone(self) -> Iterator[Row]:
        """Without peers: how time a token changes with T, in one run."""
        for operator, backward in product(self.operators, (False, True)):
            times = self.times({shape: self.cases(operator, shape)[OURS] for shape in self.shapes}, backward)
            a_token = {shape: taken / (shape.T * shape.B) for shape, taken in times.items()}
            for shape, taken in times.items():
                yield [
                    *_about(operator, shape, backward),
                    ("ms", "{:.2f}", taken * 1e3),
                    ("ns a token", "{:.0f}", a_token[shape] * 1e9),
                    ("to the first T", "{:.2f}x", a_token[shape] / a_token[self.shapes[0]]),
                ]

    def beside_layouts(self) -> Iterator[Row]:
        """Causal convolutions: how their time changes with layout and state."""
        for operator, shape, backward in self.passes():
            times = self.times(self.layouts(operator, shape), backward)
            first, *others = times
            yield [
                *_about(operator, shape, backward),
                (f"{first} ms", "{:.2f}", times[first] * 1e3),
                *((name, "{:.2f}x", times[name] / times[first]) for name in others),
            ]

    def cases(self, operator: str, shape: Shape) -> dict[str, Case]:
        """This project's operator, one of ``OPERATORS``, under ``OURS``, and its peers."""
        T, B, C, H, K = shape.T, shape.B, shape.C, shape.H, shape.K
        padding = shape.padding_l, K - 1 - shape.padding_l
        x = self.random(T, B, C)
        kind, _, module = operator.partition(" ")
        logits = self.random(T, B, H, K) if operator == "dynamic" else None
        if module:
            ours = DynamicConv(C, K, heads=H, causal=shape.causal).to(x)
            result = {OURS: Case(partial(ours, x), [x, ours.weight_linear.weight])}
        else:
            kernels = self.random(H, K) if logits is None else logits
            result = {OURS: Case(partial(CONVOLUTIONS[kind], x, kernels, padding_l=padding[0]), [x, kernels])}
        for name, unfold in (("fairseq band", False), ("fairseq unfold", True)):
            layer, weight = fairseq_layer(kind, shape, x, logits)
            result[name] = Case(partial(layer, x, unfold=unfold), [x, weight])
        # of any other width fairseq's kernels compute nothing, and say so on standard output
        if self.device.type == "cuda" and self.dtype != torch.bfloat16 and K in (3, 5, 7, 15, 31, 63, 127, 255):
            with contextlib.suppress(ImportError):
                layer, weight = fairseq_layer(f"{kind} cuda", shape, x, logits)
                result["fairseq cuda"] = Case(partial(layer, x), [x, weight])
        if operator == "light":  # softmax included, in the layout that each peer wants
            rows, taps = self.random(B * C // H, H, T), self.random(H, 1, K)

            def conv1d() -> Tensor:
                if padding[0] == padding[1]:
                    return F.conv1d(rows, taps.softmax(-1), padding=padding[0], groups=H)
                return F.conv1d(F.pad(rows, padding), taps.softmax(-1), groups=H)

            result["conv1d"] = Case(conv1d, [rows, taps])
            known = importlib.util.find_spec("causal_conv1d") is not None
            if known and self.device.type == "cuda" and shape.causal and 2 <= K <= 4:
                peer = importlib.import_module("causal_conv1d").causal_conv1d_fn
                y, w = self.random(B, C, T), self.random(H, K)
                result["causal-conv1d"] = Case(lambda: peer(y, w.softmax(-1).repeat_interleave(C // H, 0)), [y, w])
        # attention with the same heads over the whole sentence, without its projections
        q, k, v = (self.random(B, H, T, C // H) for _ in range(3))
        result["sdpa"] = Case(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal), [q, k, v])
        return result

    def layouts(self, operator: str, shape: Shape) -> dict[str, Case]:
        """As many positions in each layout; packed sentences have all T of them, or, uneven, half as many and more."""
        T, B, C, H, K = shape.T, shape.B, shape.C, shape.H, shape.K
        even = torch.arange(0, T * B + 1, T, device=self.device)
        uneven = even.clone()
        uneven[1:-1:2] -= T - T // 2
        given: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
            "(T, B, C)": ((T, B), {}),
            "batch first": ((B, T), {"batch_first": True}),
            "with a state": ((T, B), {"initial_state": self.random(K - 1, B, C).detach()}),
            "packed": ((T * B,), {"cu_seqlens": even}),
            "uneven": ((T * B,), {"cu_seqlens": uneven}),
            "packed, states": ((T * B,), {"cu_seqlens": even, "initial_state": self.random(K - 1, B, C).detach()}),
        }
        built: dict[str, Case] = {}
        for name, (places, options) in given.items():
            x, weight = self.random(*places, C), self.random(*(() if operator == "light" else places), H, K)
            built[name] = Case(partial(CONVOLUTIONS[operator], x, weight, padding_l=K - 1, **options), [x, weight])
        return built


def _about(operator: str, shape: Shape, backward: bool) -> Row:
    return [
        ("operator", "{}", operator),
        ("pass", "{}", "fwd+bwd" if backward else "fwd"),
        ("T", "{}", shape.T),
        ("B", "{}", shape.B),
    ]


def _best_of_fairseq(taken: dict[str, Any]) -> tuple[str, Any]:
    """The mode that takes least, and what it takes."""
    name = min((name for name in taken if name.startswith("fairseq")), key=lambda name: taken[name])
    return name.removeprefix("fairseq "), taken[name]
