"""What people read: progress, a line that rewrites itself or, with nobody watching, a line now and then; and tables."""

import sys
import time
from collections.abc import Sequence

SECONDS_BETWEEN_LINES = 10.0


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
