"""Timing on a machine with other load: the cases take turns, and the median of the turns counts.

If other jobs always run, ``clock_of`` returns a clock of CPU time in place of wall time, and the fastest turn counts
(``typical_of``).
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from timeit import timeit
from typing import Any, TypeVar

import torch
from torch.utils.benchmark import timer  # a clock that waits for the GPU

from data_prep.common.provenance import processor
from lightconv_plugin import ops
from scripts.fairseq_io.precision import processor_reasons

TURN_SECONDS = 0.02  # a turn repeats a short case for this long, so that reading the clock costs nothing
MIN_TURNS = 5
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # PyTorch's switch, for CPUs
Name = TypeVar("Name", bound=Hashable)
Row = list[tuple[str, str, Any]]  # of a table: heading, format and value of each column


def precisions(args: Namespace) -> list[str]:
    """Return the precisions that are measured, fp32 first.

    On a CPU the others are bf16 and, for searches, int8, if the processor has units for them; on a GPU fp16 for
    searches.
    """
    searches = args.what in ("decode", "text")
    if args.device != "cpu":
        return ["fp32", "fp16"] if searches else ["fp32"]
    chosen = ["fp32"]
    for precision in ("bf16", *(["int8"] if searches else [])):
        if reason := processor_reasons()[precision]:
            print(f"not measured in {precision}: {reason}")
        else:
            chosen.append(precision)
    return chosen


@contextmanager
def products_in(precision: str, arch: str) -> Iterator[None]:
    """Compute matrix products on a CPU in ``precision`` within the block: ours by our switch, others by PyTorch's.

    fp16 sets both to fp32, because there the whole model is converted.
    """
    previous = MATMUL.fp32_precision
    if arch.startswith("pla_"):
        ops.set_precision("fp32" if precision == "fp16" else precision)
    else:
        MATMUL.fp32_precision = "bf16" if precision == "bf16" else "ieee"
    try:
        yield
    finally:
        ops.set_precision("fp32")
        MATMUL.fp32_precision = previous


def take_turns(
    cases: Mapping[Name, Callable[[], object]], seconds: float, clock: Callable[[], float] = timer
) -> dict[Name, list[float]]:
    """Run the cases in turns; return for each case the seconds per call of each turn.

    There are at least ``MIN_TURNS`` turns, which last about ``seconds`` for each case. A first call, which is not
    measured, warms each case up.
    """
    turn = min(TURN_SECONDS, seconds / MIN_TURNS)
    calls = {}
    for name, case in cases.items():
        case()
        calls[name] = max(1, round(turn / max(timeit(case, timer=clock, number=1), 1e-7)))
    turns: dict[Name, list[float]] = {name: [] for name in cases}
    deadline = time.perf_counter() + seconds * len(cases)
    while min(map(len, turns.values())) < MIN_TURNS or time.perf_counter() < deadline:
        for name, case in cases.items():
            turns[name].append(timeit(case, timer=clock, number=calls[name]) / calls[name])
    return turns


def clock_of(args: Namespace, other_processes: Iterable[int] = ()) -> Callable[[], float]:
    """Return the clock to measure with: wall time or, with --cpu-seconds, CPU time.

    Args:
        args: the command's arguments.
        other_processes: IDs of the processes that work for a case, besides this one.
    """
    if not args.cpu_seconds:
        return timer
    processes = list(other_processes)
    return lambda: time.process_time() + sum(map(cpu_seconds, processes))


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of the threads of another process; ``process`` is its ID."""
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def typical_of(args: Namespace, times: Sequence[float]) -> float:
    """Return one time for those of several turns: the median or, with --cpu-seconds, the shortest."""
    return min(times) if args.cpu_seconds else statistics.median(times)


def median_times(cases: Mapping[Name, Callable[[], object]], seconds: float) -> dict[Name, float]:
    """Return the seconds per call of each case: the median over its turns."""
    return {name: statistics.median(times) for name, times in take_turns(cases, seconds).items()}


def spread(times: Sequence[float]) -> float:
    """Return half the distance between the quartiles of several times, divided by their median."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / 2 / middle


def machine(device: torch.device) -> str:
    """Return one line with the machine and the instructions in use, for the head of a table."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    ours = (
        f"our kernels {torch.ops.lightconv.cpu_vector_bits(0)} bits, bf16 {ops.bf16_units()}, int8 {ops.int8_units()}"
    )
    theirs = f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    return f"{processor()}, {torch.get_num_threads()} threads, {theirs}; {ours}"
