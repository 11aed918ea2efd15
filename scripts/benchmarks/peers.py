"""The convolution and what it is measured against, each as a function of nothing that can be timed.

The peers run as they are at their best: their own parameters, their own layout, nothing copied for them.
"""

import contextlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin import ops

OURS = "ours"


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

    @property
    def taps(self) -> int:
        """Pairs of a position and a tap that fall inside the sentence, of all sentences and channels."""
        inside = sum(max(0, self.T - abs(j - self.padding_l)) for j in range(self.K))
        return inside * self.B * self.C

    def bytes_moved(self, dynamic: bool, size: int, backward: bool) -> int:
        """The least a forward pass, or forward and backward, reads and writes."""
        activations = self.T * self.B * self.C
        weights = (self.T * self.B if dynamic else 1) * self.H * self.K
        forward = 2 * activations + weights
        return size * (forward + (3 * activations + 2 * weights if backward else 0))


class FixedKernels(nn.Module):
    """In place of a predictor of kernels: the kernels' logits themselves, so that the operator alone is timed."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.out_features = logits.shape[2:].numel()  # the module asks for it

    def forward(self, query: Tensor) -> Tensor:
        return self.logits


Case = tuple[Callable[[], Tensor], list[Tensor]]  # a forward pass, and what gradients are taken of


_LAYERS = {
    "light": ("lightweight_convolution", "LightweightConv1dTBC"),
    "dynamic": ("dynamic_convolution", "DynamicConv1dTBC"),
    "light cuda": ("lightconv_layer", "LightconvLayer"),
    "dynamic cuda": ("dynamicconv_layer", "DynamicconvLayer"),
}


def fairseq_layer(kind: str, shape: Shape, x: Tensor, logits: Tensor | None = None) -> tuple[nn.Module, Tensor]:
    """fairseq's convolution of a kind in ``_LAYERS``, and its weight: the logits, if they are given.

    Raises:
        ImportError: fairseq's own CUDA kernels are not installed; they have to be compiled by hand.
    """
    place, name = _LAYERS[kind]
    made = getattr(importlib.import_module(f"fairseq.modules.{place}"), name)
    options = {"padding_l": shape.padding_l, "num_heads": shape.H, "weight_softmax": True, "bias": False}
    layer = made(shape.C, shape.K, **options).to(x)
    if logits is None:
        return layer, layer.weight if kind.startswith("light") else layer.weight_linear.weight
    layer.weight_linear = FixedKernels(logits.flatten(2) if kind.endswith("cuda") else logits)
    return layer, logits


def _causal_conv1d(shape: Shape, x: Tensor) -> Case | None:
    """causal-conv1d (Dao) over (B, C, T), softmax included, where it is installed and takes the shape."""
    if importlib.util.find_spec("causal_conv1d") is None:
        return None
    if x.device.type != "cuda" or not shape.causal or not 2 <= shape.K <= 4:
        return None
    causal_conv1d = importlib.import_module("causal_conv1d").causal_conv1d_fn
    inputs = torch.randn(shape.B, shape.C, shape.T).to(x).requires_grad_()
    weight = torch.randn(shape.H, shape.K).to(x).requires_grad_()
    channels = shape.C // shape.H
    return lambda: causal_conv1d(inputs, weight.softmax(-1).repeat_interleave(channels, 0)), [inputs, weight]


def _conv1d(shape: Shape, x: Tensor) -> Case:
    """A grouped F.conv1d over (B * R, H, T), softmax included: LightConv in the layout that conv1d wants."""
    inputs = torch.randn(shape.B * shape.C // shape.H, shape.H, shape.T).to(x).requires_grad_()
    weight = torch.randn(shape.H, 1, shape.K).to(x).requires_grad_()
    pad = (shape.padding_l, shape.K - 1 - shape.padding_l)
    if pad[0] == pad[1]:
        return lambda: F.conv1d(inputs, weight.softmax(-1), padding=pad[0], groups=shape.H), [inputs, weight]
    return lambda: F.conv1d(F.pad(inputs, pad), weight.softmax(-1), groups=shape.H), [inputs, weight]


def _attention(shape: Shape, x: Tensor) -> Case:
    """scaled_dot_product_attention with the same heads over the whole sentence, without its projections."""
    q, k, v = (torch.randn(shape.B, shape.H, shape.T, shape.C // shape.H).to(x).requires_grad_() for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal), [q, k, v]


def cases(operator: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Case]:
    """This project's operator under ``OURS``, and its peers.

    Args:
        operator: "light"; "dynamic", kernels given; or "dynamic module", kernels predicted by a linear map.
    """
    x = torch.randn(shape.T, shape.B, shape.C, device=device, dtype=dtype, requires_grad=True)
    options: dict[str, Any] = {"padding_l": shape.padding_l}
    result: dict[str, Case] = {}
    logits: Tensor | None = None
    if operator == "light":
        kernel = torch.randn(shape.H, shape.K, device=device, dtype=dtype, requires_grad=True)
        result[OURS] = (lambda: ops.light_conv(x, kernel, **options)), [x, kernel]
    elif operator == "dynamic":
        logits = torch.randn(shape.T, shape.B, shape.H, shape.K, device=device, dtype=dtype, requires_grad=True)
        result[OURS] = (lambda: ops.dynamic_conv(x, logits, **options)), [x, logits]
    elif operator == "dynamic module":
        from lightconv_plugin.modules import DynamicConv

        module = DynamicConv(shape.C, shape.K, heads=shape.H, causal=shape.causal).to(x)
        result[OURS] = (lambda: module(x)), [x, module.weight_linear.weight]
    else:
        raise ValueError(f"no operator {operator!r}")
    kind = operator.split()[0]
    for name, unfold in (("fairseq band", False), ("fairseq unfold", True)):
        layer, weight = fairseq_layer(kind, shape, x, logits)
        result[name] = partial(layer, x, unfold=unfold), [x, weight]
    # of any other width fairseq's kernels compute nothing, and say so on standard output
    if device.type == "cuda" and dtype != torch.bfloat16 and shape.K in (3, 5, 7, 15, 31, 63, 127, 255):
        with contextlib.suppress(ImportError):  # the command says so, once
            layer, weight = fairseq_layer(f"{kind} cuda", shape, x, logits)
            result["fairseq cuda"] = partial(layer, x), [x, weight]
    if operator == "light":
        result["conv1d"] = _conv1d(shape, x)
        special = _causal_conv1d(shape, x)
        if special is not None:
            result["causal-conv1d"] = special
    result["sdpa"] = _attention(shape, x)
    return result


def forward(case: Case) -> Callable[[], None]:
    """The forward pass alone, without a graph."""
    function, _ = case

    def run() -> None:
        with torch.no_grad():
            function()

    return run


def forward_backward(case: Case) -> Callable[[], None]:
    """Forward and backward, with the gradients of everything that is listed."""
    function, leaves = case
    gradient = torch.randn_like(function())

    def run() -> None:
        torch.autograd.grad(function(), leaves, gradient)

    return run
