"""Functions of many lines on as many processes as are worth starting."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain

_CHUNK = 2000  # lines a task: small enough to share out evenly, large enough to be worth sending


def in_chunks(
    work: Callable[[Sequence[str]], list[str]], lines: Sequence[str], *, workers: int = 1, size: int = _CHUNK
) -> list[str]:
    """Apply a picklable function to chunks of lines, on several processes if there are enough; order stays."""
    chunks = list(_chunks(lines, size))
    workers = min(workers, len(chunks))
    if workers <= 1:
        return list(chain.from_iterable(map(work, chunks)))
    with ProcessPoolExecutor(workers) as pool:
        return list(chain.from_iterable(pool.map(work, chunks)))


def available_processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunks(lines: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(lines), size):
        yield lines[start : start + size]
