"""Text for people: tables, and progress in one line that is rewritten (outside of a terminal, a line now and then)."""

import codecs
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SECONDS_BETWEEN_LINES = 10.0
OUTPUT = "standard output"
_UNKNOWN_LETTERS = "spell"


class _Stream(io.FileIO):
    """Standard output or error. It names itself when it takes no more; ``unread``: or goes nowhere without a reader."""

    def __init__(self, number: int, *, unread: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._unread = unread

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if self._unread and isinstance(error, BrokenPipeError):  # `... | head` ends no training
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())
                os.close(nowhere)
                return len(data)
            error.filename = OUTPUT
            raise


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """Print the bytes of a file's name as they are, and a letter that the locale lacks (C has no "±") as its number."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


codecs.register_error(_UNKNOWN_LETTERS, _spell)


def make_streams_usable(*, unread: bool) -> None:
    """Let what is printed never fail for its letters, nor for a stream that was closed (``>&-``).

    Files that are opened later must not get the number of a closed stream: what a library prints would go into them.
    ``unread``: what nobody reads any more goes nowhere, without an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for number, name in ((1, "stdout"), (2, "stderr")):
        before: Any = getattr(sys, name)
        options = {"line_buffering": before.line_buffering, "write_through": before.write_through}
        stream = io.BufferedWriter(_Stream(number, unread=unread))
        setattr(sys, name, io.TextIOWrapper(stream, before.encoding, _UNKNOWN_LETTERS, **options))


class StatusLine:
    """The current state of a long job. ``update`` shows it, ``line`` says something that is to stay."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._shown = False
        self._last = -SECONDS_BETWEEN_LINES

    def update(self, text: str) -> None:
        now = time.monotonic()
        if self._live:
            print(f"\r\x1b[K{text}", end="", flush=True)
            self._shown = True
        elif now - self._last >= SECONDS_BETWEEN_LINES:
            print(text, flush=True)
            self._last = now

    def line(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._shown else text, flush=True)
        self._shown = False

    def close(self) -> None:
        if self._shown:
            print(flush=True)
        self._shown = False


@contextmanager
def repeatedly(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` every so many seconds, in a thread of its own, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
