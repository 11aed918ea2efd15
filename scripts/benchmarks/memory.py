"""``scripts.bench memory``: the most memory of forward and backward beyond inputs, parameters and gradients' seed."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from scripts.benchmarks.peers import OURS, Shape, cases, forward_backward
from scripts.common.errors import UserError

COLUMNS = [
    ("operator", "operator", "{}"), ("T", "T", "{}"), ("B", "B", "{}"), ("ours MB", "ours_mb", "{:.1f}"),
    ("fairseq MB", "fairseq_mb", "{:.1f}"), ("its mode", "fairseq_mode", "{}"), ("ratio", "ratio", "{:.1f}x"),
    ("sdpa MB", "sdpa_mb", "{:.1f}"), ("ours, bytes a token", "bytes_a_token", "{:.0f}"),
]  # fmt: skip
PEERS = (OURS, "fairseq band", "fairseq unfold", "fairseq cuda", "sdpa")


def measure(
    operators: list[str],
    shapes: list[Shape],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[dict[str, Any]]:
    """One record for each operator and shape; fairseq's frugal mode is the one that is compared."""
    for operator in operators:
        for shape in shapes:
            taken = {name: _peak(operator, shape, dtype, device, name) for name in PEERS}
            known = {name: value for name, value in taken.items() if value is not None}
            theirs = {n.removeprefix("fairseq "): v for n, v in known.items() if n.startswith("fairseq")}
            mode = min(theirs, key=lambda name: theirs[name])
            yield {
                "operator": operator,
                "T": shape.T,
                "B": shape.B,
                "ours_mb": known[OURS] / 1e6,
                "fairseq_mb": theirs[mode] / 1e6,
                "fairseq_mode": mode,
                "ratio": theirs[mode] / known[OURS],
                "sdpa_mb": known["sdpa"] / 1e6,
                "bytes_a_token": known[OURS] / (shape.T * shape.B),
            }


def _peak(operator: str, shape: Shape, dtype: torch.dtype, device: torch.device, name: str) -> int | None:
    """Bytes, or None where there is no such peer."""
    if device.type == "cuda":
        return _peak_on_gpu(operator, shape, dtype, device, name)
    # a process of its own: memory that was freed but kept by the allocator would hide what the next case takes
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_resident, args=(operator, shape, dtype, name, sender))
    process.start()
    sender.close()
    try:
        result: int | None = receiver.recv()
    except EOFError:
        process.join()
        raise UserError(
            f"the memory of {operator!r} ({name}) at T = {shape.T} could not be measured: its process ended with "
            f"{process.exitcode}, probably for want of memory; choose a smaller --tokens or shorter --lengths"
        ) from None
    process.join()
    return result


def _report_resident(operator: str, shape: Shape, dtype: torch.dtype, name: str, sender: Connection) -> None:
    built = cases(operator, shape, dtype, torch.device("cpu"))
    if name not in built:
        sender.send(None)
        return
    small = cases(operator, Shape(2, 1, shape.C, shape.H, shape.K, shape.causal), dtype, torch.device("cpu"))[name]
    forward_backward(small)()  # code and thread pools are in memory before the count begins
    function, leaves = built[name]
    gradient = torch.ones(shape.T, shape.B, shape.C, dtype=dtype) if name != "sdpa" else torch.ones_like(leaves[0])
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    held = torch.autograd.grad(function(), leaves, gradient)
    peak = _status("VmHWM") - before
    sender.send(max(peak, sum(t.numel() * t.element_size() for t in held)))


def _status(field: str) -> int:
    """Bytes of this process, from Linux's own count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise UserError(f"/proc/self/status has no {field}; scripts.bench memory on a CPU needs Linux")


def _peak_on_gpu(operator: str, shape: Shape, dtype: torch.dtype, device: torch.device, name: str) -> int | None:
    built = cases(operator, shape, dtype, device)
    if name not in built:
        return None
    function, leaves = built[name]
    gradient = torch.ones_like(function())
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    torch.autograd.grad(function(), leaves, gradient)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
