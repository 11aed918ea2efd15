"""Worker processes that end when we end, and the progress of what they do."""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from scripts.common.errors import UserError
from scripts.common.process import end_with_parent
from scripts.common.terminal import StatusLine, clock

Task = TypeVar("Task")
Result = TypeVar("Result")

_SECONDS_BETWEEN_UPDATES = 0.5
_AHEAD = 3  # tasks a worker that are in memory


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

    def __exit__(self, kind: object, *_: object) -> None:
        self._status.close()
        if self._executor is None:
            return
        if kind is not None:  # nobody waits for what will be thrown away
            for process in multiprocessing.active_children():
                process.kill()
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
        """A function to be told that so many lines more are done, which it shows twice a second at most."""
        start = last = time.monotonic()
        done = 0

        def update(more: int) -> None:
            nonlocal last, done
            done += more
            now = time.monotonic()
            if now - last < _SECONDS_BETWEEN_UPDATES:
                return
            last, rate = now, done / (now - start)
            text = f"{what}: {done:,} lines" if lines is None else f"{what}: {done:,} of {lines:,} lines"
            text += f", {rate:,.0f} a second"
            self._status.update(text if lines is None else f"{text}, {clock((lines - done) / rate)} left")

        return update
