"""DropConnect inside the native kernels: which weights are dropped, and that backward drops the same."""

import pytest
import torch
from torch import Tensor

from lightconv_plugin.ops import autograd, reference
from lightconv_plugin.ops.normalization import normalize_kernel
from tests.ops import native
from tests.ops.philox import factors, philox
from tests.tolerances import assert_close

SEED = (12345 << 32) + 678


ONES = (0xFFFFFFFF,) * 4
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_KEY = (0xA4093822, 0x299F31D0)


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "words"),
    [
        (7, (0,) * 4, (0, 0), "5f6fb709 0d893f64 4f121f81 4f730a48"),
        (7, ONES, ONES[:2], "5207ddc2 45165e59 4d8ee751 8c52f662"),
        (7, PI, PI_KEY, "4dfccaba 190a87f0 c47362ba b6b5242a"),
        (10, (0,) * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (10, ONES, ONES[:2], "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (10, PI, PI_KEY, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_generator_gives_the_known_answers(rounds, counter, key, words):
    """Random123's kat_vectors. The kernels are compared with this generator below."""
    assert philox(list(counter), key, rounds) == [int(word, 16) for word in words.split()]


def operator(kind: str, x: Tensor, w: Tensor, padding_l: int, p: float, seed: int, softmax: bool = True) -> Tensor:
    return autograd.conv(f"{kind}_conv", x, w, padding_l, softmax, p, torch.tensor([seed]))


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("kind", ["light", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("time", "heads", "ratio", "width"),
    [(5, 2, 16, 3), (37, 3, 20, 7), (40, 5, 1, 31), (23, 1, 1, 1), (140, 90, 3, 7), (9, 6, 8, 15), (135, 37, 1, 5)],
)
def test_outputs_and_gradients_are_those_under_the_mask(softmax, kind, dtype, time, heads, ratio, width, vector_bits):
    batch, p, padding_l = 2, 0.3, width // 2
    g = torch.Generator().manual_seed(3)
    x = torch.randn(time, batch, heads * ratio, generator=g, dtype=torch.float64, requires_grad=True)
    w = torch.randn(*((time, batch) if kind == "dynamic" else ()), heads, width, generator=g, dtype=torch.float64)
    w.requires_grad_()
    grad = torch.randn(x.shape, generator=g, dtype=torch.float64)
    given_x, given_w = (each.detach().to(dtype).requires_grad_() for each in (x, w))
    out = operator(kind, given_x, given_w, padding_l, p, SEED, softmax)
    grads = torch.autograd.grad(out, (given_x, given_w), grad.to(dtype))
    kernel = normalize_kernel(w, "softmax" if softmax else "none").expand(time, batch, heads, width)
    thinned = kernel * factors((time, batch, heads, width), p, SEED)
    expected = reference.dynamic_conv(x, thinned, padding_l=padding_l, normalization="none")
    assert_close(out, expected)
    for got, want in zip(grads, torch.autograd.grad(expected, (x, w), grad), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("kind", ["light", "dynamic"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate_scale_and_independence(kind, p):
    """K heads that each read one tap of a constant input show the mask itself, weight by weight."""
    time, batch, heads, width = 250, 4, 4, 8
    mask = torch.stack([tap_values(kind, tap, time, batch, heads, width, p) for tap in range(width)], dim=-1)
    scale = 1 / (1 - torch.tensor(p).item())  # p is rounded to float32
    assert_close(mask, (mask > 0).double() * scale)
    keep = (mask > 0).double()
    deviation = (p * (1 - p) / keep.numel()) ** 0.5
    assert abs(keep.mean().item() - (1 - p)) < 4 * deviation
    for dim in range(4):
        a, b = keep.narrow(dim, 0, keep.shape[dim] - 1), keep.narrow(dim, 1, keep.shape[dim] - 1)
        covariance = ((a - (1 - p)) * (b - (1 - p))).mean().item()
        assert abs(covariance) < 5 * p * (1 - p) / a.numel() ** 0.5, f"neighbours along dimension {dim} depend"


def tap_values(kind: str, tap: int, time: int, batch: int, heads: int, width: int, p: float) -> Tensor:
    """(T, B, H): the factor of one tap at every position."""
    w = torch.zeros(heads, width, dtype=torch.float64)
    w[:, tap] = 1.0
    if kind == "dynamic":
        w = w.expand(time, batch, heads, width)
    # positions whose tap would fall outside the sequence are cut off by making it longer
    longer = torch.ones(time + width - 1, batch, heads, dtype=torch.float64)
    if kind == "dynamic":
        w = torch.cat([w, w[: width - 1]])
    return operator(kind, longer, w, 0, p, SEED, softmax=False)[:time]


@pytest.mark.parametrize("kind", ["light", "dynamic"])
def test_the_seed_comes_from_torch(kind):
    x = torch.ones(30, 2, 4)
    w = torch.zeros(*((30, 2) if kind == "dynamic" else ()), 2, 5)

    def draw() -> Tensor:
        return getattr(native, f"{kind}_conv")(x, w, padding_l=2, dropconnect=0.5)

    torch.manual_seed(4)
    first, second = draw(), draw()
    torch.manual_seed(4)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)
