"""``causal_conv1d`` against loops over what FLA's computes, and against FLA's own where it and Triton are installed.

On a CPU Triton interprets its kernels, if TRITON_INTERPRET=1 and FLA_CACHE_RESULTS=0 are set (fla-core 0.6.0, triton
3.7.1; the interpreter of 3.9 fails in them).
"""

import importlib
import os
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


@pytest.mark.parametrize("extras", [False, True], ids=["alone", "bias, residual, state"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_flas_own_gives_the_same(packed, extras, monkeypatch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("FLA's kernels need a GPU, or TRITON_INTERPRET=1")
    theirs = pytest.importorskip("fla.modules.causal_conv1d").causal_conv1d
    if device == "cpu":  # nothing to choose from by time
        tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        monkeypatch.setattr(tuner, "do_bench", property(lambda _: lambda *_, **__: [1.0] * 3))
    offsets = torch.tensor([0, 3, 3, 9, 10] if packed else [0, 5, 10], device=device)
    shapes = [
        (1, 10, 6) if packed else (2, 5, 6),
        (6, 4),
        (6,),
        (1, 10, 6) if packed else (2, 5, 6),
        (len(offsets) - 1, 6, 4),
    ]
    x, weight, *rest = (torch.randn(shape, device=device, requires_grad=True) for shape in shapes)
    given: dict[str, Any] = dict(zip(("bias", "residual", "initial_state"), rest, strict=True)) if extras else {}
    given |= {"activation": "silu", "output_final_state": True, "cu_seqlens": offsets if packed else None}
    results = []
    for call in (causal_conv1d, theirs):
        out, last = call(x, weight, **given)  # whose final state has no gradients
        results.append((out, last, *torch.autograd.grad(out.sin().sum(), (x, weight, *(rest if extras else ())))))
    for got, want in zip(*results, strict=True):
        assert_close(got.detach().cpu(), want.detach().cpu())


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
        ({"weight": torch.zeros(3, 4)}, r"x \(B, T, D\) and weight \(D, W\); got \(2, 5, 6\) and \(3, 4\)"),
        ({"weight": torch.zeros(6, 1, 4)}, r"and weight \(D, W\); got .* and \(6, 1, 4\)"),
        ({"weight": torch.zeros(())}, r"and weight \(D, W\); got .* and \(\)"),
        ({"x": torch.zeros(5, 6)}, r"expected x \(B, T, D\) .* got \(5, 6\)"),
        ({"initial_state": torch.zeros(2, 6, 3)}, r"as \(N, D, W\) = \(2, 6, 4\); got \(2, 6, 3\)"),
        ({"residual": torch.zeros(5, 2, 6)}, r"residual is expected as x, \(2, 5, 6\); got \(5, 2, 6\)"),
        ({"weight": None}, r"expected tensors x \(B, T, D\) and weight \(D, W\); got Tensor and NoneType"),
        ({"initial_state": [0.0]}, "causal_conv1d: initial_state is expected as a tensor; got list"),
        ({"cu_seqlens": [0, 5]}, "causal_conv1d: cu_seqlens is expected as a tensor; got list"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(TypeError if "tensor" in message else ValueError, match=message):
        causal_conv1d(**{"x": draw(2, 5, 6), "weight": draw(6, 4), **options})
