"""``causal_conv1d`` against loops over what FLA's computes."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv_plugin.adapters.fla import causal_conv1d
from tests.tolerances import assert_close


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def sentence(x: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The convolution of x (T, D) behind state (D, W), and the last W inputs (D, W)."""
    width, rows = weight.shape[1], torch.cat([state.t(), x])
    out = [(rows[width + t + 1 - width : width + t + 1].t() * weight).sum(1) for t in range(len(x))]
    return torch.stack(out) if out else x, rows[len(x) :].t()


@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("extras", [False, True], ids=["alone", "bias, residual, state"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_it_computes_what_flas_does(width, packed, extras, activation):
    offsets = torch.tensor([0, 3, 3, 9, 10] if packed else [0, 5, 10])
    x, weight = draw(*((1, 10) if packed else (2, 5)), 6), draw(6, width)
    bias, residual, state = draw(6), draw(*x.shape), draw(len(offsets) - 1, 6, width)
    given: dict[str, Any] = {"bias": bias, "residual": residual, "initial_state": state} if extras else {}
    got, last = causal_conv1d(
        x, weight, activation=activation, output_final_state=True, cu_seqlens=offsets if packed else None, **given
    )
    rows, before = x.reshape(10, 6), state if extras else torch.zeros_like(state)
    each = [sentence(rows[a:b], weight, before[n]) for n, (a, b) in enumerate(pairwise(offsets.tolist()))]
    want, ends = torch.cat([out for out, _ in each]).view(x.shape), torch.stack([end for _, end in each])
    want = want + bias if extras else want
    want = want if activation is None else want * want.sigmoid()
    want = want + residual if extras else want
    assert last is not None
    assert_close(got, want)
    assert_close(last, ends)
    inputs, results = (x, weight, *given.values()), []
    for out, end in ((got, last), (want, ends)):
        results.append(torch.autograd.grad(out.sin().sum() + end.cos().sum(), inputs))
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


def test_channels_in_several_dimensions_and_no_state():
    x, weight = draw(2, 5, 3, 2), draw(6, 4)
    out, last = causal_conv1d(x, weight)
    assert last is None
    assert_close(out, causal_conv1d(x.flatten(2), weight)[0].view_as(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, "activation is 'relu'; expected None, 'silu' or 'swish'"),
        ({"cp_context": object()}, "several GPUs"),
        ({"cu_seqlens": torch.tensor([0, 5])}, r"expected as \(1, total, D\); got \(2, 5, 6\)"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        causal_conv1d(draw(2, 5, 6), draw(6, 4), **options)
