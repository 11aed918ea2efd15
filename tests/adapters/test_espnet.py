"""ESPnet's modules against loops over what they compute, and against ESPnet itself where it is installed."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin.adapters import espnet
from tests.tolerances import assert_close

H, C, B = 2, 6, 3
MODULES: dict[Any, str] = {
    espnet.LightweightConvolution: "lightconv",
    espnet.LightweightConvolution2D: "lightconv2d",
    espnet.DynamicConvolution: "dynamic_conv",
    espnet.DynamicConvolution2D: "dynamic_conv2d",
}
CASES = [(7, 5), (2, 5), (9, 3)]  # T, K
kinds = pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
causal = pytest.mark.parametrize("use_kernel_mask", [False, True])
sizes = pytest.mark.parametrize(("time", "width"), CASES)


def make(kind: type, width: int, use_kernel_mask: bool) -> Any:
    module = kind(H, C, 0.0, width, use_kernel_mask, True).double().eval()
    torch.nn.init.normal_(module.bias)
    return module


def inputs(time: int) -> tuple[Tensor, Tensor]:
    mask = torch.ones(B, 1, time, dtype=torch.bool)
    mask[1, 0, 1:] = False
    return torch.randn(B, time, C, dtype=torch.float64, requires_grad=True), mask


def over_time(module: Any, x: Tensor, width: int, hidden: bool) -> Tensor:
    out, time = torch.zeros_like(x), x.shape[1]
    dynamic = isinstance(module, espnet.DynamicConvolution)
    for b in range(B):
        for t in range(time):
            for c in range(C):
                head = c // (C // H) if dynamic else c % H
                reached = [t + j - width // 2 for j in range(width)]
                kept = [j for j, s in enumerate(reached) if not (hidden and s > t)]
                if dynamic:
                    kept = [j for j in kept if 0 <= reached[j] < time]
                    logits = module.linear_weight(x[b, t]).view(H, width)[head, kept]
                else:
                    logits = module.weight[head, 0, kept]
                for weight, j in zip(logits.softmax(0), kept, strict=True):
                    if 0 <= reached[j] < time:
                        out[b, t, c] += weight * x[b, reached[j], c]
    return out


def over_features(module: Any, x: Tensor, width: int) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(B):
        for t in range(x.shape[1]):
            dynamic = isinstance(module, espnet.DynamicConvolution)
            kernel = module.linear_weight_f(x[b, t]) if dynamic else module.weight_f[0, 0].softmax(0)
            for c in range(C):
                for j in range(width):
                    if 0 <= c + j - width // 2 < C:
                        out[b, t, c] += kernel[j] * x[b, t, c + j - width // 2]
    return out


@kinds
@causal
@sizes
@torch.no_grad()
def test_the_modules_compute_what_espnets_do(kind, use_kernel_mask, time, width):
    module = make(kind, width, use_kernel_mask)
    query, mask = inputs(time)
    x = torch.nn.functional.glu(module.linear1(query), dim=-1)
    want = over_time(module, x, width, use_kernel_mask) + module.bias
    if kind.outputs == 2:
        want = torch.cat([want, over_features(module, x, width)], -1)
    if not use_kernel_mask:
        want[~mask.squeeze(1)] = 0
    assert_close(module(query, None, None, mask), module.linear2(want))


@kinds
@causal
@sizes
def test_espnets_weights_give_its_outputs_and_gradients(kind, use_kernel_mask, time, width, recwarn):
    try:
        theirs = importlib.import_module(f"espnet.nets.pytorch_backend.transformer.{MODULES[kind]}")
    except ImportError:
        pytest.skip("espnet is not installed")
    ours = make(kind, width, use_kernel_mask)
    other = getattr(theirs, kind.__name__)(H, C, 0.0, width, use_kernel_mask, True).double().eval()
    with torch.no_grad():
        other.bias.normal_()
    ours.load_state_dict(other.state_dict())
    query, mask = inputs(time)
    got, want = ours(query, query, query, mask), other(query, query, query, mask)
    assert_close(got, want)
    names = [name for name, _ in ours.named_parameters()]
    expected = dict(other.named_parameters())
    for a, b in zip(
        torch.autograd.grad(got.sin().sum(), (query, *ours.parameters())),
        torch.autograd.grad(want.sin().sum(), (query, *(expected[name] for name in names))),
        strict=True,
    ):
        assert_close(a, b)


@kinds
def test_gradients_and_dropout(kind):
    """A logit of minus infinity passes no gradient on; dropout falls in training alone."""
    module, (query, mask) = make(kind, 3, False), inputs(4)
    assert torch.autograd.gradcheck(lambda x, *_: module(x, None, None, mask), (query, *module.parameters()))
    module.dropout.p = 0.5
    for training in (True, False):
        first, second = (module.train(training)(query, None, None, None) for _ in range(2))
        assert torch.equal(first, second) is not training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 6, 0.0, 3), "wshare=4 does not divide n_feat=6"),
        ((0, 6, 0.0, 3), "wshare=0 does not divide n_feat=6"),
        ((2, 6, 0.0, 4), "kernel_size=4 is even; Lightweight"),
        ((2, 6, 0.0, "11"), "kernel_size is '11'; a whole number from 1 on is expected"),
        ((2, 6, 0.0, 0), "kernel_size is 0; a whole number from 1 on"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        espnet.LightweightConvolution(*arguments)


def test_a_mask_of_another_shape():
    module, (query, _) = make(espnet.LightweightConvolution, 3, False), inputs(4)
    with pytest.raises(ValueError, match=r"mask is expected as \(B, 1, T\) = \(3, 1, 4\); got \(3, 4\)"):
        module(query, None, None, torch.ones(3, 4))
