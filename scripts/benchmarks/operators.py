"""``scripts.bench ops``: the convolutions, forward and forward with backward."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from lightconv_plugin import ops
from scripts.benchmarks.peers import OURS, Case, Shape, cases, forward, forward_backward
from scripts.benchmarks.timing import interleaved, peak_bytes, peak_flops

_CASE = [("operator", "operator", "{}"), ("pass", "pass", "{}"), ("T", "T", "{}"), ("B", "B", "{}")]
COLUMNS = [
    *_CASE, ("ours ms", "ours_ms", "{:.2f}"), ("fairseq ms", "fairseq_ms", "{:.2f}"),
    ("its mode", "fairseq_mode", "{}"), ("ratio", "ratio", "{:.1f}x"), ("conv1d", "conv1d_ratio", "{:.1f}x"),
    ("causal-conv1d", "causal_conv1d_ratio", "{:.1f}x"), ("sdpa", "sdpa_ratio", "{:.1f}x"),
    ("GFLOP/s", "gflops", "{:.0f}"), ("of peak", "of_peak_flops", "{:.0%}"), ("GB/s", "gbytes", "{:.1f}"),
    ("of peak", "of_peak_bytes", "{:.0%}"),
]  # fmt: skip
ALONE_COLUMNS = [
    *_CASE, ("ms", "ms", "{:.2f}"), ("ns a token", "ns_a_token", "{:.0f}"), ("to the first T", "to_first", "{:.2f}x")
]  # fmt: skip
LAYOUT_COLUMNS = [
    *_CASE, ("(T, B, C) ms", "ms", "{:.2f}"), ("batch first", "batch_first", "{:.2f}x"),
    ("with a state", "state", "{:.2f}x"), ("packed", "packed", "{:.2f}x"),
    ("uneven", "packed_uneven", "{:.2f}x"),
]  # fmt: skip
LARGEST_BAND = 2**31  # bytes of fairseq's band matrix beyond which that mode is left out


def measure(
    operators: list[str],
    shapes: list[Shape],
    *,
    dtype: torch.dtype,
    device: torch.device,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """One record for each operator, shape and pass.

    ``ratio`` is the time of fairseq's fastest mode over this project's, ``conv1d`` and ``sdpa`` likewise.
    """
    flops, bandwidth = peak_flops(device), peak_bytes(device)
    for operator in operators:
        for shape in shapes:
            built = cases(operator, shape, dtype, device)
            element = torch.empty((), dtype=dtype).element_size()
            if shape.B * shape.H * shape.T * (shape.T + shape.K) * element > LARGEST_BAND:
                built.pop("fairseq band", None)
            for backward in (False, True):
                wrap = forward_backward if backward else forward
                times = interleaved({name: wrap(case) for name, case in built.items()}, device, seconds=seconds)
                yield _record(operator, shape, backward, times, element, flops, bandwidth)


def measure_alone(
    operators: list[str], shapes: list[Shape], *, dtype: torch.dtype, device: torch.device, seconds: float
) -> Iterator[dict[str, Any]]:
    """One record for each operator, pass and shape, without peers: how time a token changes with T, in one run."""
    for operator in operators:
        built = {shape: cases(operator, shape, dtype, device)[OURS] for shape in shapes}
        for backward in (False, True):
            wrap = forward_backward if backward else forward
            times = interleaved({shape: wrap(case) for shape, case in built.items()}, device, seconds=seconds)
            a_token = {shape: taken / (shape.T * shape.B) for shape, taken in times.items()}
            for shape, taken in times.items():
                yield _about(operator, shape, backward) | {
                    "ms": taken * 1e3,
                    "ns_a_token": a_token[shape] * 1e9,
                    "to_first": a_token[shape] / a_token[shapes[0]],
                }


def measure_layouts(
    operators: list[str], shapes: list[Shape], *, dtype: torch.dtype, device: torch.device, seconds: float
) -> Iterator[dict[str, Any]]:
    """One record for each operator, shape and pass: causal, and how its time changes with layout and state."""
    for operator in operators:
        for shape in shapes:
            built = _layouts(operator, shape, dtype, device)
            for backward in (False, True):
                wrap = forward_backward if backward else forward
                times = interleaved({name: wrap(case) for name, case in built.items()}, device, seconds=seconds)
                ratios = {name: taken / times["ms"] for name, taken in times.items()}
                yield _about(operator, shape, backward) | ratios | {"ms": times["ms"] * 1e3}


def _layouts(operator: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Case]:
    """As many positions in each layout; packed sentences have all T of them, or, uneven, half as many and more."""
    T, B, C, H, K = shape.T, shape.B, shape.C, shape.H, shape.K
    conv = {"light": ops.light_conv, "dynamic": ops.dynamic_conv}[operator]
    even = torch.arange(0, T * B + 1, T, device=device)
    uneven = even.clone()
    uneven[1:-1:2] -= T - T // 2
    state = torch.randn(K - 1, B, C, device=device, dtype=dtype)
    given: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "ms": ((T, B), {}),
        "batch_first": ((B, T), {"batch_first": True}),
        "state": ((T, B), {"initial_state": state}),
        "packed": ((T * B,), {"cu_seqlens": even}),
        "packed_uneven": ((T * B,), {"cu_seqlens": uneven}),
    }
    built: dict[str, Case] = {}
    for name, (places, options) in given.items():
        x = torch.randn(*places, C, device=device, dtype=dtype, requires_grad=True)
        size = (H, K) if operator == "light" else (*places, H, K)
        weight = torch.randn(size, device=device, dtype=dtype, requires_grad=True)
        built[name] = partial(conv, x, weight, padding_l=K - 1, **options), [x, weight]
    return built


def _about(operator: str, shape: Shape, backward: bool) -> dict[str, Any]:
    return {"operator": operator, "pass": "fwd+bwd" if backward else "fwd", "T": shape.T, "B": shape.B}


def _record(
    operator: str, shape: Shape, backward: bool, times: dict[str, float], element: int, flops: float, bandwidth: float
) -> dict[str, Any]:
    ours = times[OURS]
    theirs = {name.removeprefix("fairseq "): taken for name, taken in times.items() if name.startswith("fairseq")}
    mode = min(theirs, key=lambda name: theirs[name])
    done = 2 * shape.taps * (3 if backward else 1)
    moved = shape.bytes_moved(operator != "light", element, backward)
    counted = operator != "dynamic module"  # its matrix product is not in the counts
    return _about(operator, shape, backward) | {
        "ours_ms": ours * 1e3,
        "fairseq_ms": theirs[mode] * 1e3,
        "fairseq_mode": mode,
        "ratio": theirs[mode] / ours,
        "conv1d_ratio": times["conv1d"] / ours if "conv1d" in times else None,
        "causal_conv1d_ratio": times["causal-conv1d"] / ours if "causal-conv1d" in times else None,
        "sdpa_ratio": times["sdpa"] / ours,
        "gflops": done / ours / 1e9 if counted else None,
        "of_peak_flops": done / ours / flops if counted else None,
        "gbytes": moved / ours / 1e9 if counted else None,
        "of_peak_bytes": moved / ours / bandwidth if counted else None,
    }
