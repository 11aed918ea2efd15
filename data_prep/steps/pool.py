"""Worker processes for tasks of known size, with progress, throughput and time left; they end when we end."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, TypeVar

from scripts.common.errors import UserError
from scripts.common.process import end_with_parent
from scripts.common.terminal import StatusLine, clock

Task = TypeVar("Task")
Result = TypeVar("Result")

_SECONDS_BETWEEN_UPDATES = 0.5

_lines_done: Any = None  # lines of the tasks now running: shared with the workers
_on_tick: Callable[[], None] | None = None  # where the work is done in this very process


def tick(lines: int) -> None:
    """Called by a task now and then: so many lines more are done."""
    with _lines_done.get_lock():
        _lines_done.value += lines
    if _on_tick is not None:
        _on_tick()


def _start_worker(counter: Any, parent: int) -> None:
    global _lines_done, _on_tick
    end_with_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _lines_done, _on_tick = counter, None


class Pool:
    """``workers`` processes; with one, the work is done in this process. To be used in a ``with`` block."""

    def __init__(self, workers: int) -> None:
        global _lines_done
        self._status = StatusLine()
        # fork: workers start in milliseconds and have the modules; nothing here has threads at this point
        context = multiprocessing.get_context("fork")
        self._counter = _lines_done = context.Value("q", 0)
        self._executor = (
            ProcessPoolExecutor(workers, context, _start_worker, (self._counter, os.getpid())) if workers > 1 else None
        )
        self.workers = workers

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._status.close()
        if self._executor is None:
            return
        if kind is not None:  # nobody waits for a shard that will be thrown away
            for process in multiprocessing.active_children():
                process.kill()
        self._executor.shutdown(cancel_futures=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._status.line(text)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        what: str,
        lines: int | None = None,
        done: int = 0,
    ) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, as they are completed.

        Args:
            function: what to do with a task, in a worker; importable by name.
            what: the step, for the progress line.
            lines: how many lines there are in all, if known; ``done`` of them by an earlier run.
        """
        global _on_tick
        with self._counter.get_lock():
            self._counter.value = 0
        progress = self._progress(what, lines, done)
        if self._executor is None:
            _on_tick = progress
            try:
                for task in tasks:
                    yield task, function(task)
            finally:
                _on_tick = None
            return
        pending: dict[Future[Result], Task] = {self._executor.submit(function, task): task for task in tasks}
        try:
            while pending:
                finished, _ = wait(pending, timeout=_SECONDS_BETWEEN_UPDATES, return_when=FIRST_COMPLETED)
                progress()
                for future in finished:
                    yield pending.pop(future), future.result()
        except BrokenProcessPool as error:
            raise UserError(
                f"{what}: a worker process was killed, most often because memory ran out; give fewer --workers (now "
                f"{self.workers}) and run the same command again, it goes on from the last complete shard"
            ) from error
        finally:
            for future in pending:
                with suppress(Exception):
                    future.cancel()

    def _progress(self, what: str, lines: int | None, done: int) -> Callable[[], None]:
        """A function that shows how far the lines of the tasks are, twice a second at most."""
        start = last = time.monotonic()

        def update() -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < _SECONDS_BETWEEN_UPDATES:
                return
            last = now
            count = self._counter.value
            rate = count / (now - start)
            text = f"{what}: {done + count:,}"
            text += " lines" if lines is None else f" of {lines:,} lines"
            text += f", {rate:,.0f} a second"
            if lines is not None and rate > 0:
                text += f", {clock((lines - done - count) / rate)} left"
            self._status.update(text)

        return update
