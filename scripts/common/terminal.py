"""What people read: progress, a line that rewrites itself or, with nobody watching, a line now and then; and tables."""

import io
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


class _Unread(io.FileIO):
    """A stream that goes nowhere once nobody reads it: `... | head` ends no training."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def go_on_unread() -> None:
    """Let standard output and error go nowhere, without a word, from when nobody reads them any more."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:  # closed from the start otherwise
            buffer = io.BufferedWriter(_Unread(stream.fileno(), "w", closefd=False))
            buffered = stream.line_buffering or stream.write_through
            text = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=buffered)
            setattr(sys, name, text)


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
