"""Text for people: tables, and progress in one line that is rewritten (outside of a terminal, a line now and then)."""

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REPORTS = 30.0


def print_any_letter() -> None:
    """Let what is printed for people never fail for its letters: one that the locale lacks stands as its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class StatusLine:
    """The current state of a long job: ``update`` shows it on stderr, ``line`` prints on stdout what is to stay."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._seconds = 0.5 if self._live else SECONDS_BETWEEN_LINES
        self._shown = False
        self._last = -self._seconds

    def update(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return
        self._last, self._shown = now, self._live
        print(f"\r\x1b[K{text}" if self._live else text, end="" if self._live else "\n", flush=True, file=sys.stderr)

    def line(self, text: str) -> None:
        if self._shown:
            print("\r\x1b[K", end="", flush=True, file=sys.stderr)
        print(text, flush=True)
        self._shown = False

    def close(self) -> None:
        if self._shown:
            print(flush=True, file=sys.stderr)
        self._shown = False


@contextmanager
def shown(describe: Callable[[], str]) -> Iterator[None]:
    """Show the state that ``describe`` returns, asked every second by a thread, until the block ends."""
    ended, status = threading.Event(), StatusLine()

    def run() -> None:
        while not ended.wait(1.0):
            status.update(describe())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        status.close()


@contextmanager
def progress(total: int, unit: str, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how much of a long job is done, on stderr: a bar in a terminal, elsewhere a line every half minute.

    Args:
        total: number of units.
        unit: the unit's name, in the plural.
        done: units that were done before, which do not count for the speed.

    Yields:
        a function to be called with a number of units whenever so many more are done.
    """
    with tqdm(total=total, unit=f" {unit}", initial=done, disable=not sys.stderr.isatty()) as bar:
        start = last = time.monotonic()
        new = 0

        def report(more: int) -> None:
            nonlocal new, last
            new += more
            bar.update(more)
            now = time.monotonic()
            if bar.disable and new and now - last >= SECONDS_BETWEEN_REPORTS:
                last, speed = now, new / (now - start)
                left = clock((total - done - new) / speed)
                text = f"{done + new:,} of {total:,} {unit}, {speed:.1f} {unit} a second, {left} left"
                print(text, flush=True, file=sys.stderr)

        yield report


def clock(seconds: float) -> str:
    """Seconds as people write them: 0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def aligned(rows: Sequence[Sequence[str]], *, left: int, rule: bool = False) -> list[str]:
    """Rows of cells as lines: the first ``left`` columns to the left, the others, figures, to the right.

    ``rule`` draws a line of dashes below the first row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [list(row) for row in rows]
    if rule:
        lines.insert(1, ["-" * width for width in widths])
    sides = [str.ljust] * left + [str.rjust] * (len(widths) - left)
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    ]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, figures to the right."""
    lines = [header, ["---", *("--:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
