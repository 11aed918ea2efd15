"""Timing that survives a busy machine: the cases take turns, and the median of the turns counts."""

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from scripts.common.provenance import processor

TURN_SECONDS = 0.02  # a turn repeats a short case for this long, so that the clock's own cost vanishes
MIN_TURNS = 5
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_CACHE = 2**25  # bytes, where nobody says
MOST_BYTES = 2**30  # a virtual machine may name a cache that others use, too
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # PyTorch's switch, for CPUs
Name = TypeVar("Name", bound=Hashable)


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until the device has done all it was given."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


@contextmanager
def products_in(precision: str, arch: str) -> Iterator[None]:
    """Have products on a CPU in ``precision``: ours by our switch, others by PyTorch's; fp16 is a model's own type."""
    from lightconv_plugin import ops  # here: the plugin is registered where fairseq is there before it

    before = MATMUL.fp32_precision
    if arch.startswith("pla_"):
        ops.set_precision("fp32" if precision == "fp16" else precision)
    else:
        MATMUL.fp32_precision = {"fp32": "ieee", "fp16": "ieee", "bf16": "bf16"}[precision]
    try:
        yield
    finally:
        ops.set_precision("fp32")
        MATMUL.fp32_precision = before


def interleaved(
    cases: Mapping[Name, Callable[[], object]], device: torch.device, *, seconds: float = 1.0
) -> dict[Name, float]:
    """Seconds a call of each case: the median over its turns; see ``take_turns``."""
    return {name: statistics.median(times) for name, times in take_turns(cases, device, seconds=seconds).items()}


def spread(times: Sequence[float]) -> float:
    """Half of the distance between the quartiles of several times, over their median."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / 2 / middle


def take_turns(
    cases: Mapping[Name, Callable[[], object]], device: torch.device, *, seconds: float = 1.0
) -> dict[Name, list[float]]:
    """Seconds a call of each case in each of the turns that all cases take one after the other.

    Args:
        cases: what to call, by name. A first call, unmeasured, warms each up.
        device: where the work is done; on a GPU a turn ends when the device is idle.
        seconds: about how long to go on for each case; at least ``MIN_TURNS`` turns are taken.
    """
    wait = synchronizer(device)
    turn = min(TURN_SECONDS, seconds / MIN_TURNS)
    calls = {}
    for name, case in cases.items():
        case()
        wait()
        start = time.perf_counter()
        case()
        wait()
        calls[name] = max(1, round(turn / max(time.perf_counter() - start, 1e-7)))
    turns: dict[Name, list[float]] = {name: [] for name in cases}
    deadline = time.perf_counter() + seconds * len(cases)
    while min(map(len, turns.values())) < MIN_TURNS or time.perf_counter() < deadline:
        for name, case in cases.items():
            wait()
            start = time.perf_counter()
            for _ in range(calls[name]):
                case()
            wait()
            turns[name].append((time.perf_counter() - start) / calls[name])
    return turns


def kernels_of(case: Callable[[], object], device: torch.device) -> tuple[int, float] | None:
    """Count the kernels of a call on a GPU, those in graphs too, and their seconds; None on a CPU."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        case()
        synchronizer(device)()
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
    source = torch.empty(numbers, device=device).normal_()
    target = torch.empty_like(source)
    taken = interleaved({"copy": lambda: target.copy_(source)}, device, seconds=0.5)["copy"]
    return 2 * source.numel() * source.element_size() / taken


def peak_flops(device: torch.device) -> float:
    """Floating-point operations a second, float32, without the tensor cores of a GPU.

    On a CPU a loop of fused multiply-adds on all of torch's threads (``torch.ops.lightconv.cpu_fma``); on a GPU a large
    matrix product, which reaches a little less than the arithmetic units could.
    """
    if device.type == "cpu":
        iterations = 2_000_000
        operations = torch.ops.lightconv.cpu_fma(iterations)
        taken = interleaved({"fma": lambda: torch.ops.lightconv.cpu_fma(iterations)}, device, seconds=0.5)["fma"]
        return operations / taken
    size = 8192
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return 2 * size**3 / interleaved({"mm": lambda: a @ b}, device, seconds=0.5)["mm"]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def machine(device: torch.device) -> str:
    """The machine in a line, for the head of a table."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
