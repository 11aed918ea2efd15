"""Progress of long work on stderr: a bar in a terminal; in a file, a line after 10 seconds and then every half minute.

Work that reports its progress itself::

    with progress("reading", total=size, unit="B") as advance:
        for block in blocks:
            advance(len(block))

Work that does not, such as another program's, is measured by a thread once a second::

    with measured_progress("downloading", lambda: (path.stat().st_size, size), unit="B"):
        subprocess.run(command)

Work that ends sooner prints nothing. ``print_line`` prints to stdout without damaging a bar.
"""

import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BEFORE_FIRST_LINE = 10.0
SECONDS_BEFORE_BAR = 1.0
SECONDS_BETWEEN_BARS = 0.5
SECONDS_BETWEEN_MEASUREMENTS = 1.0

Advance = Callable[[int], object]
"""A function that is called with the number of items that were done since its last call."""
Measurement = tuple[int, int | None]
"""The number of items done so far, and the number of all items, None if unknown."""


def ignore_progress(count: int) -> None:
    """Do nothing: an ``Advance`` for work whose progress is not shown."""


@contextmanager
def progress(title: str, total: int | None = None, unit: str = "lines", *, initial: int = 0) -> Iterator[Advance]:
    """Show the progress of the work in the block.

    Args:
        title: the name of the work.
        total: the number of items; None if unknown, and then the time left is not shown.
        unit: the name of the items in the plural, or ``B`` for bytes.
        initial: the number of items done by an earlier run, which do not count for the speed.

    Yields:
        a function to call with the number of items done since the last call; from one thread.
    """
    with _bar(title, total, unit, initial) as bar:
        yield bar.update


@contextmanager
def measured_progress(
    title: str, measure: Callable[[], Measurement] | None = None, unit: str = "lines"
) -> Iterator[None]:
    """Show the progress of work that runs elsewhere while the block waits for it.

    Args:
        title: the name of the work.
        measure: returns the number of items done so far and of all items; a thread calls it every second. None if
            nothing can be measured; then only the time is shown.
        unit: as for ``progress``.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(SECONDS_BETWEEN_MEASUREMENTS):
            count, bar.total = measure() if measure else (0, None)
            bar.update(count - bar.n)

    with _bar(title, None, unit if measure else "") as bar:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def print_line(text: str) -> None:
    """Print a line to stdout; a bar in the terminal is moved below it."""
    _Bar.write(text, file=sys.stdout)
    sys.stdout.flush()


class _Bar(tqdm):
    """tqdm's bar without its monitor thread, because worker processes are forked while it is shown."""

    monitor_interval = 0

    def __init__(self, *, as_lines: bool, **options: Any) -> None:
        self._as_lines = as_lines
        super().__init__(**options)

    @property
    def format_dict(self) -> MutableMapping[str, Any]:
        state = super().format_dict
        if not self.unit.strip() or not (self.n or self.total):  # nothing to count, or nothing counted yet
            state["bar_format"] = "{desc}: {elapsed}"
        elif self._as_lines:
            count = "{percentage:.0f}% of {total_fmt}" if self.total else "{n_fmt}"
            remaining = ", {remaining} left" if self.total else ""
            state["bar_format"] = f"{{desc}}: {count}{{unit}}, {{rate_fmt}}{remaining}"
        return state


_Bar.set_lock(threading.RLock())  # the default is shared with child processes; none of ours draws a bar


class _Lines:
    """A stream that prints each state of a bar as a line of its own, without the carriage returns that redraw a bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if state := text.strip():
            print(state, file=self._stream, flush=True)

    def flush(self) -> None:
        """Do nothing: ``write`` has flushed."""


@contextmanager
def _bar(title: str, total: int | None, unit: str, initial: int = 0) -> Iterator[_Bar]:
    live = sys.stderr.isatty()
    with _Bar(
        as_lines=not live,
        desc=title,
        total=total,
        initial=initial,
        unit=unit if unit == "B" else f" {unit}",
        unit_scale=True,
        file=sys.stderr if live else _Lines(sys.stderr),
        leave=False,
        dynamic_ncols=True,
        delay=SECONDS_BEFORE_BAR if live else SECONDS_BEFORE_FIRST_LINE,
        mininterval=SECONDS_BETWEEN_BARS if live else SECONDS_BETWEEN_LINES,
        miniters=0,
        smoothing=0,  # the speed and the time left are those of the whole work so far
    ) as bar:
        # tqdm would wait for ``mininterval`` before the first line
        bar.last_print_t = bar.start_t - bar.mininterval
        yield bar
