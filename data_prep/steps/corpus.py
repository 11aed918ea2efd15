"""The text between two passes, with a file for each split and language, and the tools of a pass over it.

Lines are UTF-8. Only LF ends a line: carriage returns and other line separators stay inside it.
"""

import multiprocessing
import os
import signal
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
from data_prep.common.progress import progress
from data_prep.dataset import Step

Line = TypeVar("Line", str, bytes)
Task = TypeVar("Task")
Result = TypeVar("Result")
Block = tuple[bytes, ...]  # consecutive lines of a split: the same number of whole lines for each language

CHUNK = 2_000  # lines of a block
_AHEAD = 3  # tasks per worker that are in memory


@dataclass
class Text:
    """The state of the text between two passes."""

    lines: dict[str, int] = field(default_factory=dict)  # numbers of lines by split
    files: dict[str, list[str]] = field(default_factory=dict)
    """Paths by ``<split>.<language>``, relative to the work folder; concatenated, the files are the split."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """For each step and split of the last pass: lines in and out, and the dropped lines by reason."""
    report: dict[str, Any] = field(default_factory=dict)  # the source's remarks on the raw text (first pass only)

    def __str__(self) -> str:
        return ", ".join(f"{split} {lines:,}" for split, lines in self.lines.items())


def _start_worker(parent: int) -> None:
    end_with_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interruption
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Pool:
    """``workers`` processes, for use in a ``with`` block. With one worker, this process does the work itself."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # fork: workers start in milliseconds with all modules; this process has no threads when they start
        context = multiprocessing.get_context("fork")
        self._executor = ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(),)) if workers > 1 else None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task], *, title: str) -> Iterator[Result]:
        """Yield the results in the order of the tasks. Only a few tasks are in memory at a time.

        Args:
            function: turns a task into a result, in a worker; importable by name, or a ``partial`` of such a function.
            tasks: its arguments.
            title: the name of the work, for the error message.

        Raises:
            UserError: a worker was killed, most often because memory ran out.
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
                f"{title}: a worker process was killed, most often because memory ran out; give fewer --workers (now "
                f"{self.workers}) and run the same command again, it resumes after the last complete step"
            ) from error


class Context:
    """A pass: the text that it reads, the splits that it writes, and its workers. ``stack`` closes its files."""

    def __init__(
        self, text: Text, work: Path, folder: str, languages: Sequence[str], pool: Pool, stack: ExitStack
    ) -> None:
        self.text, self.work, self.folder, self.languages, self.pool = text, work, folder, languages, pool
        self.lines: dict[str, int] = {}  # as in ``Text``, for the splits that it has written
        self.files: dict[str, list[str]] = {}
        self._stack = stack
        self._open: dict[str, list[IO[bytes]]] = {}

    def write(self, split: str, block: Sequence[bytes] = (), lines: int = 0) -> None:
        """Append a block of ``lines`` lines to a split. Without a block, this makes the split, which may stay empty."""
        if split not in self._open:
            names = [f"{split}.{language}" for language in self.languages]
            self.files |= {name: [f"{self.folder}/{name}"] for name in names}
            paths = [self.work / self.folder / name for name in names]
            self._open[split] = [self._stack.enter_context(open_synced(path)) for path in paths]
        for file, part in zip(self._open[split], block, strict=bool(block)):
            file.write(part)
        self.lines[split] = self.lines.get(split, 0) + lines

    def blocks(self, split: str, title: str, *, languages: Sequence[str] = (), lines: int = CHUNK) -> Iterator[Block]:
        """Yield the lines of a split in blocks of ``lines``, and show the progress.

        Args:
            split: the split.
            title: the name of the work, for the progress.
            languages: the languages to read; all by default.
            lines: the number of lines of a block.
        """

        def lines_of(language: str) -> Iterator[bytes]:
            for file in self.text.files[f"{split}.{language}"]:
                with open(self.work / file, "rb") as f:
                    yield from f

        sides = [lines_of(language) for language in languages or self.languages]
        with progress(title, self.text.lines[split]) as advance:
            while first := list(islice(sides[0], lines)):
                rest = (b"".join(islice(side, len(first))) for side in sides[1:])
                yield (b"".join(first), *rest)
                advance(len(first))

    def route(self, split: str, title: str, choose: Callable[[list[list[bytes]]], list[str | None]]) -> None:
        """Distribute the rows of a split over splits.

        Args:
            split: the split to read, which exists afterwards even if it is empty.
            title: the name of the work, for the progress.
            choose: takes some rows, in order, as a list of lines for each language; returns the new split of each row,
                or None to drop it.
        """
        self.write(split)
        for block in self.blocks(split, title):
            chosen = choose(columns := columns_of(block))
            for name in dict.fromkeys(filter(None, chosen)):
                rows = select(columns, [split_of_row == name for split_of_row in chosen])
                self.write(name, [b"\n".join(side) + b"\n" for side in rows], len(rows[0]))


Log = list[dict[str, Any]]
WholeStep = Callable[[Context, Step], Log]
"""A step on the whole corpus: it takes the pass and its own parameters, writes the splits that it changes, and returns
its log."""


@contextmanager
def open_synced(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of a pass for writing; when the block ends, its content is on the disk."""
    with open_own(path, "wb") as f:
        yield f
        f.flush()
        os.fsync(f.fileno())


def columns_of(block: Block) -> list[list[bytes]]:
    """Split a block into lines without LF, for each language."""
    return [side.removesuffix(b"\n").split(b"\n") for side in block]


def select(columns: Sequence[Sequence[Line]], keep: Sequence[bool]) -> list[list[Line]]:
    """Return the rows for which ``keep`` is true, as a list of lines for each language."""
    return [[line for line, is_kept in zip(column, keep, strict=True) if is_kept] for column in columns]
