"""Reading fairseq's training log (``--log-format json``), the only module that knows its format."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_LINE = re.compile(r"^\S+ \S+ \| \w+ \| (train_inner|train|valid) \| (\{.*\})$")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
_ENDED_EARLY = re.compile(r"early stop since valid performance hasn't improved for last (\d+) runs")
_EXPLODED = re.compile(r"FloatingPointError: (.*)")
# what a person should see of fairseq's log; the numbers of samples differ from epoch to epoch
_TOLD = re.compile(
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

    Losses are by update; what was done again after a resumption replaces the older figure. The seconds are those spent,
    the work that a kill undid included.
    """

    parameters: int | None = None
    trained_parameters: int | None = None
    backend: dict[str, str] = field(default_factory=dict)
    train_loss: dict[int, float] = field(default_factory=dict)
    valid_loss: dict[int, float] = field(default_factory=dict)
    tokens_per_second: list[float] = field(default_factory=list)
    updates: int = 0
    exploded: str | None = None  # fairseq's words
    validations_without_gain: int | None = None  # as many as ended the training before its last update
    told: list[str] = field(default_factory=list)
    _earlier: float = 0.0
    _this: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Return how long the training took so far; None if the log does not say."""
        return self._earlier + self._this or None

    def read(self, line: str) -> Progress | None:
        """Take in one line; returns its numbers if it has any."""
        if found := _BACKEND.search(line):
            self.backend[found[1]] = found[2]
        if found := _PARAMETERS.search(line):
            self.parameters, self.trained_parameters = (int(group.replace(",", "")) for group in found.groups())
            self._earlier, self._this = self._earlier + self._this, 0.0  # a run begins, and fairseq's clock with it
            self.validations_without_gain = None
        if found := _ENDED_EARLY.search(line):
            self.validations_without_gain = int(found[1])
        if found := _EXPLODED.search(line):
            self.exploded = found[1]
        if (found := _TOLD.search(line)) and (text := found[1] or found[3] or found[4]) not in self.told:
            self.told.append(text)
        progress = parse_progress(line)
        if progress is None:
            return None
        self.updates = max(self.updates, progress.update)
        if "wall" in progress.values:
            self._this = progress.values["wall"]
        if progress.kind == "valid":
            self.valid_loss[progress.update] = progress.values["loss"]
        elif progress.kind == "train_inner":
            self.train_loss[progress.update] = progress.values["loss"]
            if "wps" in progress.values:
                self.tokens_per_second.append(progress.values["wps"])
        return progress


def read_log(lines: Iterable[str]) -> TrainLog:
    """Everything in a training log."""
    log = TrainLog()
    for line in lines:
        log.read(line)
    return log


def parse_progress(line: str) -> Progress | None:
    """The numbers in a line of fairseq's JSON log; None for any other line, and for a line cut off by a kill."""
    if not (found := _LINE.match(line)):
        return None
    try:
        content = json.loads(found[2])
    except ValueError:
        return None
    prefix = "" if found[1] == "train_inner" else f"{found[1]}_"
    values = {
        key.removeprefix(prefix): number for key, value in content.items() if (number := _as_number(value)) is not None
    }
    if "num_updates" not in values or "loss" not in values:
        return None
    return Progress(found[1], int(values["num_updates"]), values)


def _as_number(value: Any) -> float | None:
    """A number, which fairseq writes as text; None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
