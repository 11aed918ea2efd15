"""Steps that look at one line or one pair at a time, fused: a shard is read once, goes through all, is written once."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from data_prep.dataset import Step
from data_prep.steps.context import EXAMPLES, ShardTask, excerpt, first_examples
from data_prep.steps.pool import tick
from data_prep.steps.registry import INNER, LINE, STEPS
from data_prep.steps.shards import select

NOT_UTF8 = "not UTF-8"
_ALL = STEPS | INNER


def run(task: ShardTask, *, steps: Sequence[Step]) -> None:
    """Write what the steps make of a shard, with its marker: for each step lines in, out, and dropped by reason."""
    running = [_RunningStep(step, task.languages) for step in steps]
    facts: dict[str, Any] = {}
    undecodable = 0
    with task.writer(facts) as writer:
        for blocks in task.blocks():
            columns, bad = _decode(blocks)
            undecodable += bad
            for step in running:
                columns = step(columns)
            writer.write(task.shard.split, [[line.encode() for line in column] for column in columns])
            tick(len(blocks[0]))
        facts["steps"] = [step.facts() for step in running]
        facts["undecodable"] = undecodable


def _decode(blocks: Sequence[list[bytes]]) -> tuple[list[list[str]], int]:
    """Lines as text. Pairs with bytes that are not UTF-8 are left out: reading let none pass but to be dropped here."""
    try:
        return [[line.decode() for line in block] for block in blocks], 0
    except UnicodeDecodeError:
        rows = zip(*blocks, strict=True)
        good = [row for row in rows if all(line.decode(errors="replace").encode() == line for line in row)]
        columns = [[row[place].decode() for row in good] for place in range(len(blocks))]
        return columns, len(blocks[0]) - len(good)


class _RunningStep:
    """A step at work on columns of lines, and its counts."""

    def __init__(self, step: Step, languages: Sequence[str]) -> None:
        self._name = step.name
        self._dropped: Counter[str] = Counter()
        self._examples: list[list[str]] = []
        self._lines_in = self._lines_out = 0
        parameters = json.dumps(step.parameters, sort_keys=True)
        self._on_lines = _ALL[step.name].kind == LINE
        if self._on_lines:
            wanted = step.languages or tuple(languages)
            self._of_lines = [_made(step.name, name, parameters) if name in wanted else None for name in languages]
        else:
            self._of_pair = _made(step.name, None, parameters)

    def __call__(self, columns: list[list[str]]) -> list[list[str]]:
        self._lines_in += len(columns[0])
        if self._on_lines:
            columns = [
                list(map(function, column)) if function is not None else column
                for function, column in zip(self._of_lines, columns, strict=True)
            ]
        else:
            reasons = list(map(self._of_pair, *columns))
            if any(reasons):
                self._dropped.update(reason for reason in reasons if reason is not None)
                self._remember(columns, reasons)
                columns = select(columns, [reason is None for reason in reasons])
        self._lines_out += len(columns[0])
        return columns

    def _remember(self, columns: list[list[str]], reasons: list[str | None]) -> None:
        for reason, *pair in zip(reasons, *columns, strict=True):
            if reason is not None and len(self._examples) < EXAMPLES:
                self._examples.append([*map(excerpt, pair), reason])

    def facts(self) -> dict[str, Any]:
        counts = {"in": self._lines_in, "out": self._lines_out, "dropped": dict(self._dropped)}
        return {"step": self._name, **counts, "examples": self._examples}


@lru_cache(maxsize=64)
def _made(name: str, language: str | None, parameters: str) -> Callable[..., Any]:
    """A step's function, once a process: tokenisers and merge tables take a moment to make and remember words."""
    return _ALL[name].build(language, json.loads(parameters))


def total(markers: Sequence[Mapping[str, Any]], place: int) -> dict[str, Any]:
    """Return what the markers of all shards of a split say of the step at ``place``."""
    said = [marker["steps"][place] for marker in markers]
    dropped: Counter[str] = Counter()
    for each in said:
        dropped.update(each["dropped"])
    entry = {"in": sum(each["in"] for each in said), "out": sum(each["out"] for each in said)}
    return {**entry, "dropped": dict(dropped.most_common()), "examples": first_examples(said)}
