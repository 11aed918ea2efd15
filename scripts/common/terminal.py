"""Progress for people: one line that rewrites itself on a terminal, a line now and then anywhere else."""

import sys
import time

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
