"""The text between two passes, a file a language for each split; and a pass over it, in worker processes.

Lines are UTF-8 and end with LF, which is the only thing that ends a line: carriage returns and the like inside a line
stay there.
"""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from data_prep.common.errors import UserError
from data_prep.common.outputs import open_own
from data_prep.common.process import end_with_parent
from data_prep.common.terminal import StatusLine, clock
from data_prep.dataset import Step

Line = TypeVar("Line", str, bytes)
Task = TypeVar("Task")
Result = TypeVar("Result")
Block = tuple[bytes, ...]  # some lines of a split: the same number of whole lines for each language

CHUNK = 2_000  # lines of a block
_AHEAD = 3  # tasks a worker that are in memory


@dataclass
class Text:
    """Everything that is known between two passes."""

    lines: dict[str, int] = field(default_factory=dict)  # by split
    files: dict[str, list[str]] = field(default_factory=dict)
    """By ``<split>.<language>``, relative to the work folder; one after the other they are the split."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """For each step and split of the last pass: lines in and out, and how many were dropped why."""
    report: dict[str, Any] = field(default_factory=dict)  # findings of the source on the way (the first pass)

    def __str__(self) -> str:
        return ", ".join(f"{split} {lines:,}" for split, lines in self.lines.items())


def _start_worker(parent: int) -> None:
    end_with_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Pool:
    """``workers`` processes; with one, the work is done in this process. To be used in a ``with`` block."""

    def __init__(self, workers: int) -> None:
        self._status, self.workers = StatusLine(), workers
        # fork: workers start in milliseconds and have the modules; nothing here has threads at this point
        context = multiprocessing.get_context("fork")
        self._executor = ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(),)) if workers > 1 else None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._status.close()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._status.line(text)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task], *, what: str) -> Iterator[Result]:
        """Yield the results in the order of the tasks, of which few are in memory at a time.

        Args:
            function: what to do with a task, in a worker; importable by name, or a ``partial`` of such a function.
            what: the step, for the error message.
        """
        if self._executor is None:
            yield from map(function, tasks)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(self._executor.submit(function, task))
                if len(waiting) > _AHEAD * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                f"{what}: a worker process was killed, most often because memory ran out; give fewer --workers (now "
                f"{self.workers}) and run the same command again, it goes on from the last complete step"
            ) from error

    def progress(self, what: str, lines: int | None = None) -> Callable[[int], None]:
        """A function to be told that so many lines more are done, which it shows."""
        start, done = time.monotonic(), 0

        def update(more: int) -> None:
            nonlocal done
            done += more
            rate = done / (time.monotonic() - start)
            of = "" if lines is None else f" of {lines:,}"
            left = "" if lines is None else f", {clock((lines - done) / rate)} left"
            self._status.update(f"{what}: {done:,}{of} lines, {rate:,.0f} a second{left}")

        return update


class Context:
    """A pass: the text before it, its tools, and the splits that it writes, to files that ``stack`` closes."""

    def __init__(
        self, text: Text, work: Path, folder: str, languages: Sequence[str], pool: Pool, stack: ExitStack
    ) -> None:
        self.text, self.work, self.folder, self.languages, self.pool = text, work, folder, languages, pool
        self.lines: dict[str, int] = {}  # of the splits written so far
        self.files: dict[str, list[str]] = {}  # as ``Text`` has them
        self._stack = stack
        self._open: dict[str, list[IO[bytes]]] = {}

    def write(self, split: str, block: Sequence[bytes] = (), lines: int = 0) -> None:
        """Append so many lines of each language to a split; none, to have it though it may stay empty."""
        if split not in self._open:
            names = [f"{split}.{language}" for language in self.languages]
            self.files |= {name: [f"{self.folder}/{name}"] for name in names}
            paths = [self.work / self.folder / name for name in names]
            self._open[split] = [self._stack.enter_context(open_synced(path)) for path in paths]
        for file, part in zip(self._open[split], block, strict=bool(block)):
            file.write(part)
        self.lines[split] = self.lines.get(split, 0) + lines

    def blocks(
        self, split: str, what: str, *, languages: Sequence[str] = (), lines: int | None = None
    ) -> Iterator[Block]:
        """Yield a split ``lines`` at a time (CHUNK), and show the progress under the name ``what``."""
        progress = self.pool.progress(what, self.text.lines[split])

        def lines_of(language: str) -> Iterator[bytes]:
            for file in self.text.files[f"{split}.{language}"]:
                with open(self.work / file, "rb") as f:
                    yield from f

        sides = [lines_of(language) for language in languages or self.languages]
        while first := list(islice(sides[0], lines or CHUNK)):
            others = (b"".join(islice(side, len(first))) for side in sides[1:])
            yield (b"".join(first), *others)
            progress(len(first))

    def route(self, split: str, what: str, choose: Callable[[list[list[bytes]]], list[str | None]]) -> None:
        """Write each row to the split that ``choose`` names for it; None drops it.

        ``choose`` is given some rows at a time, as a list of lines for each language, in order.
        """
        self.write(split)
        for block in self.blocks(split, what):
            chosen = choose(columns := columns_of(block))
            for name in dict.fromkeys(filter(None, chosen)):
                rows = select(columns, [each == name for each in chosen])
                self.write(name, [b"\n".join(side) + b"\n" for side in rows], len(rows[0]))


Log = list[dict[str, Any]]
WholeStep = Callable[[Context, Step], Log]
"""A step that sees the whole corpus: it takes the pass and itself, writes what changes, and returns its log."""


@contextmanager
def open_synced(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of a pass for writing; at the end of the block it is on the disk."""
    with open_own(path, "wb") as f:
        yield f
        f.flush()
        os.fsync(f.fileno())


def columns_of(block: Block) -> list[list[bytes]]:
    """The lines of a block without their LF, for each language."""
    return [side.removesuffix(b"\n").split(b"\n") for side in block]


def select(columns: Sequence[Sequence[Line]], keep: Sequence[bool]) -> list[list[Line]]:
    """Of each language's lines, those that are kept."""
    return [[line for line, stays in zip(column, keep, strict=True) if stays] for column in columns]
