"""Find the error that ended a program in its output."""

import re
import signal
from collections import deque

_LINES = 5  # largest number of lines that are shown
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SENTENCE = re.compile(r"([\w./-]+: )?error: ")  # our own commands' and shims'; argparse's has the program's name
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| ")  # a line of fairseq's log
# messages of torchrun after one of its processes has failed; it also prints a traceback of its own
_TORCHRUN = re.compile(r"[WE]\d{4} .*torch/distributed/elastic/\S+\] ")
_TORCHRUN_FAILED = re.compile(r"\] failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")


class LastWords:
    """The error in a program's output, read line by line. ``str`` returns it, or the last lines if there is none.

    Args:
        several: the program is torchrun. Then the first error counts, since the other processes fail because of it. For
            a single process the last error counts.
    """

    def __init__(self, *, several: bool) -> None:
        self.several = several
        self.killed: str | None = None
        """The process of torchrun that was killed, and the signal, in words; None if there is none."""
        self._error: list[str] = []
        self._last: deque[str] = deque(maxlen=_LINES)
        # the present part of the output: "output"; "frames" of a traceback, its "message", "chained" if another one
        # follows; "end" while errors do not count
        self._place = "output"
        self._is_over = False

    def read(self, line: str) -> None:
        """Read a line."""
        if self.several and (failed := _TORCHRUN_FAILED.search(line)) and int(failed[1]) < 0:
            self.killed = f"process {failed[2]} was killed by {signal.Signals(-int(failed[1])).name}"
        self._is_over |= self.several and bool(_TORCHRUN.match(line))
        if self._is_over or not line.strip():
            return
        self._last.append(line)
        if line == _TRACEBACK:
            is_others = self.several and self._error and self._place != "chained"
            self._place = "end" if is_others else "frames"
        elif self._place == "frames" and not line[0].isspace():
            self._place, self._error = "message", [line]
        elif self._place == "message":
            if line.startswith(_CHAINED):
                self._place = "chained"
            elif _LOGGED.match(line):
                self._place = "output"
            elif self.several and (line.startswith("  ") or line == self._error[0]):  # another process's traceback
                self._place = "end"
            elif len(self._error) < _LINES:
                self._error.append(line)
        elif self._place == "output" and _SENTENCE.match(line) and not self._error:
            self._error = [line]

    def __str__(self) -> str:
        lines = self._error or ["Its last lines:", *self._last]
        return "\n".join(f"  {line[:600]}" if number else line[:600] for number, line in enumerate(lines))
