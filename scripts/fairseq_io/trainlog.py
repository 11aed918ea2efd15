"""Read fairseq's training log (``--log-format json``). Only this module depends on the log's format."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

_LINE = re.compile(r"^\S+ \S+ \| \w+ \| (train_inner|train|valid) \| (\{.*\})$")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
_ENDED_EARLY = re.compile(r"early stop since valid performance hasn't improved for last (\d+) runs")
_EXPLODED = re.compile(r"FloatingPointError: (.*)")
# lines of fairseq's log that the user should see, without sample numbers, which differ from epoch to epoch
_NOTICE = re.compile(
    r"([\d,]+ samples have invalid sizes and will be skipped.*?)(, first few sample ids.*)?$"
    r"|(lightconv_plugin: (?:the native backend is passed over|compiling its C\+\+).*)$"
    r"|(\w+ not found, (?:please|pip) install.*)$"
)
_BACKEND = re.compile(r"lightconv_plugin: (\S+) runs on the (\S+) backend")


@dataclass(frozen=True)
class Progress:
    """One line of numbers: ``kind`` is train_inner (since the last such line), train (an epoch) or valid."""

    kind: str
    update: int
    values: dict[str, float]


@dataclass
class TrainLog:
    """The content of a whole log, over all resumptions.

    Losses are by update; if a resumption repeats an update, the newer loss counts. The seconds include updates that
    were lost and repeated.
    """

    parameters: int | None = None
    trained_parameters: int | None = None
    backend: dict[str, str] = field(default_factory=dict)
    train_loss: dict[int, float] = field(default_factory=dict)
    valid_loss: dict[int, float] = field(default_factory=dict)
    tokens_per_second: list[float] = field(default_factory=list)
    updates: int = 0
    exploded: str | None = None  # fairseq's error message
    validations_without_gain: int | None = None  # the number that ended the training early
    notices: list[str] = field(default_factory=list)
    _seconds_before: float = 0.0
    _seconds: float = 0.0
    _started: datetime | None = None  # the time of the first line of this process

    @property
    def seconds(self) -> float | None:
        """Duration of the training so far; None if the log has no times."""
        return self._seconds_before + self._seconds or None

    def read(self, line: str) -> Progress | None:
        """Add one line to the content; return its numbers if it has any."""
        if match := _BACKEND.search(line):
            self.backend[match[1]] = match[2]
        if match := _PARAMETERS.search(line):
            self.parameters, self.trained_parameters = (int(group.replace(",", "")) for group in match.groups())
            # fairseq's clock starts again
            self._seconds_before, self._seconds = self._seconds_before + self._seconds, 0.0
            self._started = _time_of(line)
            self.validations_without_gain = None
        if match := _ENDED_EARLY.search(line):
            self.validations_without_gain = int(match[1])
        if match := _EXPLODED.search(line):
            self.exploded = match[1]
        if (match := _NOTICE.search(line)) and (text := match[1] or match[3] or match[4]) not in self.notices:
            self.notices.append(text)
        progress = parse_progress(line)
        if progress is None:
            return None
        self.updates = max(self.updates, progress.update)
        if "wall" in progress.values:
            self._seconds = progress.values["wall"] or self._seconds_until(line)  # in a resumed training 0 in fairseq
        if progress.kind == "valid":
            self.valid_loss[progress.update] = progress.values["loss"]
        elif progress.kind == "train_inner":
            self.train_loss[progress.update] = progress.values["loss"]
            if "wps" in progress.values:
                self.tokens_per_second.append(progress.values["wps"])
        return progress

    def _seconds_until(self, line: str) -> float:
        """Return the seconds from the start of the process to a line, by the times of the lines; 0 without times."""
        now = _time_of(line)
        return 0.0 if now is None or self._started is None else (now - self._started).total_seconds()


def _time_of(line: str) -> datetime | None:
    """Return the time at which a line was logged; None if the line does not start with a time."""
    match = _TIME.match(line)
    return datetime.fromisoformat(match[0]) if match else None


def read_log(lines: Iterable[str]) -> TrainLog:
    """Return the content of a training log."""
    log = TrainLog()
    for line in lines:
        log.read(line)
    return log


def parse_progress(line: str) -> Progress | None:
    """Return the numbers in a line of fairseq's JSON log; None for any other line or an incomplete one."""
    if not (match := _LINE.match(line)):
        return None
    try:
        content = json.loads(match[2])
    except ValueError:
        return None
    prefix = "" if match[1] == "train_inner" else f"{match[1]}_"
    values = {
        key.removeprefix(prefix): number for key, value in content.items() if (number := _as_number(value)) is not None
    }
    if "num_updates" not in values or "loss" not in values:
        return None
    return Progress(match[1], int(values["num_updates"]), values)


def _as_number(value: Any) -> float | None:
    """Return a value as a number, which fairseq writes as text; None if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
