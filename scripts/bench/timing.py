"""Timing that survives a busy machine: the cases take turns, and the median of the turns counts."""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from timeit import timeit
from typing import Any, TypeVar

import torch
from torch.utils.benchmark import timer  # a clock that waits for the GPU

from lightconv_plugin import ops
from scripts.common.errors import UserError
from scripts.common.provenance import processor
from scripts.fairseq_io.precision import bf16_unsupported_reason

TURN_SECONDS = 0.02  # a turn repeats a short case for this long, so that the clock's own cost vanishes
MIN_TURNS = 5
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_CACHE = 2**25  # bytes, where nobody says
MOST_BYTES = 2**30  # a virtual machine may name a cache that others use, too
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # PyTorch's switch, for CPUs
Name = TypeVar("Name", bound=Hashable)
Row = list[tuple[str, str, str, Any]]  # of a table: each heading, key in the JSON, form and value


def precisions(args: Namespace) -> list[str]:
    """The precisions of products that are measured, fp32 first.

    Raises:
        UserError: one that is asked for is unknown, or the device does not have it.
    """
    on_cpu = "it is for products on a CPU; for a GPU take --flags=--bf16"
    lacking = bf16_unsupported_reason() if args.device == "cpu" else on_cpu
    if args.precisions is None:
        if lacking and args.device == "cpu":
            print(f"not measured in bf16: {lacking}")
        if args.what == "decode" and args.device != "cpu":
            return ["fp32", "fp16"]
        return ["fp32"] if lacking else ["fp32", "bf16"]
    if args.precisions not in ("fp32", "fp32,bf16"):
        raise UserError(f"--precisions is {args.precisions}, expected fp32 or fp32,bf16")
    if "bf16" in args.precisions and lacking:
        raise UserError(f"--precisions has bf16: {lacking}")
    return list(args.precisions.split(","))


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


def kernels_of(case: Callable[[], object], device: torch.device) -> tuple[int, float] | None:
    """Count the kernels of a call on a GPU, those in graphs too, and their seconds; None on a CPU."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        case()
        torch.cuda.synchronize(device)
    events = [
        event
        for event in profile.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.key.startswith(("Memcpy", "Memset"))
    ]
    return sum(event.count for event in events), sum(event.self_device_time_total for event in events) / 1e6


def beyond_cache(device: torch.device) -> int:
    """Bytes that are too many for a device's last cache, twice as many as it holds, but at most ``MOST_BYTES``."""
    if device.type == "cuda":
        cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    else:
        # kibibytes, as in 32768K
        sizes = [int(path.read_text().rstrip("K\n")) * 2**10 for path in CPU_CACHES.glob("index*/size")]
        cache = max(sizes, default=CPU_CACHE)
    return min(2 * cache, MOST_BYTES)


def peak_bytes(device: torch.device) -> float:
    """Bytes a second of a copy larger than the caches: those read and those written."""
    numbers = max(2**26, beyond_cache(device) // 8) if device.type == "cpu" else 2**29
    source = torch.ones(numbers, device=device)
    if device.type == "cuda":  # whose clock depends on the numbers; a CPU would draw them for seconds
        source.normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_times({"copy": lambda: target.copy_(source)}, 0.5)["copy"]


def peak_flops(device: torch.device) -> float:
    """Floating-point operations a second, float32, without the tensor cores of a GPU.

    On a CPU a loop of fused multiply-adds on all of torch's threads (``torch.ops.lightconv.cpu_fma``); on a GPU a large
    matrix product, which reaches a little less than the arithmetic units could.
    """
    if device.type == "cpu":
        iterations = 2_000_000
        operations = torch.ops.lightconv.cpu_fma(iterations)
        return operations / median_times({"fma": lambda: torch.ops.lightconv.cpu_fma(iterations)}, 0.5)["fma"]
    size = 8192
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return 2 * size**3 / median_times({"mm": lambda: a @ b}, 0.5)["mm"]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def machine(device: torch.device) -> str:
    """The machine in a line, for the head of a table."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
