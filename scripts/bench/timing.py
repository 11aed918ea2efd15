"""Timing that survives a busy machine: the cases take turns, and the median of the turns counts."""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from timeit import timeit
from typing import Any, TypeVar

import torch
from torch.utils.benchmark import timer  # a clock that waits for the GPU

from data_prep.common.provenance import processor
from lightconv_plugin import ops
from scripts.fairseq_io.precision import bf16_reasons

TURN_SECONDS = 0.02  # a turn repeats a short case for this long, so that the clock's own cost vanishes
MIN_TURNS = 5
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # PyTorch's switch, for CPUs
Name = TypeVar("Name", bound=Hashable)
Row = list[tuple[str, str, Any]]  # of a table: each heading, form and value


def precisions(args: Namespace) -> list[str]:
    """The precisions that are measured, fp32 first: bf16 where a CPU has the units, fp16 for a search on a GPU."""
    if args.device != "cpu":
        return ["fp32", "fp16"] if args.what == "decode" else ["fp32"]
    if lacking := bf16_reasons()["unsupported"]:
        print(f"not measured in bf16: {lacking}")
    return ["fp32"] if lacking else ["fp32", "bf16"]


@contextmanager
def products_in(precision: str, arch: str) -> Iterator[None]:
    """Have products on a CPU in ``precision``: ours by our switch, others by PyTorch's; fp16 is a model's own type."""
    before = MATMUL.fp32_precision
    if arch.startswith("pla_"):
        ops.set_precision("fp32" if precision == "fp16" else precision)
    else:
        MATMUL.fp32_precision = "bf16" if precision == "bf16" else "ieee"
    try:
        yield
    finally:
        ops.set_precision("fp32")
        MATMUL.fp32_precision = before


def take_turns(cases: Mapping[Name, Callable[[], object]], seconds: float) -> dict[Name, list[float]]:
    """Seconds a call of each case in each of the turns that all cases take one after the other.

    There are ``MIN_TURNS`` at least, for about ``seconds`` a case. A first call, unmeasured, warms each case up.
    """
    turn = min(TURN_SECONDS, seconds / MIN_TURNS)
    calls = {}
    for name, case in cases.items():
        case()
        calls[name] = max(1, round(turn / max(timeit(case, timer=timer, number=1), 1e-7)))
    turns: dict[Name, list[float]] = {name: [] for name in cases}
    deadline = time.perf_counter() + seconds * len(cases)
    while min(map(len, turns.values())) < MIN_TURNS or time.perf_counter() < deadline:
        for name, case in cases.items():
            turns[name].append(timeit(case, timer=timer, number=calls[name]) / calls[name])
    return turns


def median_times(cases: Mapping[Name, Callable[[], object]], seconds: float) -> dict[Name, float]:
    """Seconds a call of each case: the median over its turns."""
    return {name: statistics.median(times) for name, times in take_turns(cases, seconds).items()}


def spread(times: Sequence[float]) -> float:
    """Half of the distance between the quartiles of several times, over their median."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / 2 / middle


def machine(device: torch.device) -> str:
    """The machine in a line, for the head of a table."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
