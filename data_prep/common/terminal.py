"""Text for people: tables, times, and a line on the terminal with the state of a training.

The module ``progress`` shows the progress of all other work.
"""

import io
import sys
import time
from collections.abc import Sequence

SECONDS_BETWEEN_LINES = 10.0


def print_any_letter() -> None:
    """Print characters that the locale lacks as escaped numbers on stdout and stderr, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class StatusLine:
    """A line on stderr with the state of a long job; without a terminal, a new line every ``SECONDS_BETWEEN_LINES``.

    ``update`` shows a state; ``line`` prints a permanent line to stdout.
    """

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


def clock(seconds: float) -> str:
    """Return seconds as people write them: 0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def aligned(rows: Sequence[Sequence[str]], *, left: int, rule: bool = False) -> list[str]:
    """Return rows of cells as lines: the first ``left`` columns aligned to the left, the others, numbers, to the right.

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
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = [header, ["---", *("--:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
