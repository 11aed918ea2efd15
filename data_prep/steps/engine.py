"""Run a dataset's passes, each on what the one before left, and go on where an earlier run was interrupted.

In the work folder::

    00-read/             shards; removed one by one as the next pass has read them
    00-read.json         the pass is complete: its shards, counts, digests
    01-tokenise/ ...     as many as there are passes
    raw/, codes*         what steps leave for the end
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.cli import accepting
from data_prep.dataset import SPLITS, Dataset, Step
from data_prep.steps import linewise
from data_prep.steps.context import Context
from data_prep.steps.extract import Piece, extract, write_rows
from data_prep.steps.plan import CORPUS_STEPS, Pass, plan
from data_prep.steps.pool import Pool
from data_prep.steps.shards import Text
from scripts.common import scratch
from scripts.common.errors import UserError
from scripts.common.files import digest, read_json, write_json
from scripts.common.terminal import clock

READ = "00-read"
MANY = 0.1  # a step that drops more than this share of a split's lines says so


@dataclass(frozen=True)
class State:
    """Everything that is known when a pass is complete."""

    text: Text
    log: list[dict[str, Any]]
    """For each step and split of this pass: lines in and out, and how many were dropped why."""
    words: dict[str, int]  # by ``<split>.<language>``; since when a pass has counted them
    sha256: dict[str, str]  # by ``<split>.<language>``: of all its lines, as sha256sum says it
    seconds: float
    report: dict[str, Any]  # findings of the source on the way (the first pass)


class Engine:
    """One run of one dataset in one work folder, whose lock the caller holds."""

    def __init__(self, dataset: Dataset, *, work: Path, pool: Pool, keep: bool, accept_counts: bool) -> None:
        self.dataset, self.work, self._pool = dataset, work, pool
        self._keep, self._accept = keep, accept_counts
        self.passes = plan(dataset, work)
        names = [{"read"}, *({step.name for step in each.steps} for each in self.passes)]
        self.last_steps = [here.difference(*names[place:]) for place, here in enumerate(names, 1)]
        """The steps that run for the last time when reading, and in each pass: what is expected after them is due."""
        scratch.remove_leftovers(work, *(path for path in work.iterdir() if path.is_dir()))
        if any(work.glob("*/*.json")):
            pool.say(f"going on with what {work} holds")

    def say(self, text: str) -> None:
        """A line for people that stays."""
        self._pool.say(text)

    def read(self, source: Sequence[Piece] | Iterable[tuple[str, Sequence[str]]], report: dict[str, Any]) -> State:
        """The first pass: pieces of archives, or rows that a kind of its own makes; ``report`` fills on the way."""
        done = self._done(READ)
        if done is None:
            start = time.monotonic()
            (self.work / READ).mkdir(exist_ok=True)
            if isinstance(source, Sequence):
                text = extract(source, work=self.work, folder=READ, pool=self._pool)
            else:
                text = write_rows(source, work=self.work, folder=READ, languages=self.dataset.languages)
            log = [{"step": "read", "split": split, "out": text.lines(split)} for split in text.splits]
            done = self._complete(READ, text, log, {}, start, report)
        self._check(done, self.last_steps[0])
        return done

    def run(self, state: State) -> list[State]:
        """All passes after ``state``, which is what ``read`` returned; the states after each."""
        states = [state]
        for each, steps in zip(self.passes, self.last_steps[1:], strict=True):
            states.append(self._run_pass(each, states[-1]))
            self._check(states[-1], steps)
        self._check(states[-1], {"end"})
        return states

    def _run_pass(self, each: Pass, before: State) -> State:
        done = self._done(each.folder)
        if done is not None:
            return done
        start = time.monotonic()
        (self.work / each.folder).mkdir(exist_ok=True)
        for step in each.steps:
            for split in step.splits:
                if split not in before.text.splits:
                    raise UserError(
                        f"{self.dataset.file}: {step.name}.splits: there is no split {split} when this step runs; "
                        f"there are {', '.join(before.text.splits)}"
                    )
        context = Context(self.work, each.folder, self.dataset.languages, self._pool, self._keep)
        if each.corpus:
            (step,) = each.steps
            run = CORPUS_STEPS[step.name].build(None, step.parameters)
            text, log = run(context, before.text, step)
            words = {key: count for key, count in before.words.items() if text.splits == before.text.splits}
        else:
            text, log, words = self._run_lines(context, each, before)
        sha256 = before.sha256 if text == before.text else None
        return self._complete(each.folder, text, log, words, start, {}, sha256)

    def _run_lines(
        self, context: Context, each: Pass, before: State
    ) -> tuple[Text, list[dict[str, Any]], dict[str, int]]:
        of_split: dict[str, list[Step]] = {}
        for split in before.text.splits:
            if steps := [step for step in each.steps if not step.splits or split in step.splits]:
                of_split[split] = steps
        jobs = {
            shard: partial(linewise.run, steps=steps)
            for split, steps in of_split.items()
            for shard in before.text.splits[split]
        }
        text, said = context.rewrite(before.text, jobs, ", ".join(dict.fromkeys(step.name for step in each.steps)))
        log: list[dict[str, Any]] = []
        words = dict(before.words)
        for split, steps in of_split.items():
            markers = [marker for shard, marker in said.items() if shard.split == split]
            undecodable = sum(marker["undecodable"] for marker in markers)
            if undecodable:
                entry = {"step": "read", "split": split, "in": before.text.lines(split)}
                entry |= {"out": before.text.lines(split) - undecodable, "dropped": {linewise.NOT_UTF8: undecodable}}
                log.append(entry)
            for place, step in enumerate(steps):
                where = {"languages": list(step.languages)} if step.languages else {}
                log.append({"step": step.name, "split": split, **where, **linewise.total(markers, place)})
            for language in context.languages:
                key = f"{split}.{language}"
                words[key] = sum(marker["words"].get(key, 0) for marker in markers)
        return text, log, words

    def _complete(
        self,
        folder: str,
        text: Text,
        log: list[dict[str, Any]],
        words: dict[str, int],
        start: float,
        report: dict[str, Any],
        sha256: dict[str, str] | None = None,
    ) -> State:
        if sha256 is None:
            files = {
                f"{split}.{language}": tuple(shard.path(self.work, language) for shard in shards)
                for split, shards in text.splits.items()
                for language in self.dataset.languages
            }
            found = dict(self._pool.run(digest, list(files.values()), what=f"{folder}: checksums"))
            sha256 = {name: found[paths] for name, paths in files.items()}
        seconds = round(time.monotonic() - start, 1)
        for entry in log:
            self._say_many_dropped(entry)
        state = State(text, log, words, sha256, seconds, dict(report))
        _check_none_empty(state)
        write_json(self.work / f"{folder}.json", {**vars(state), "text": text.to_json()})
        self._pool.say(f"{folder}: done in {clock(seconds)}; {text} lines")
        return state

    def _say_many_dropped(self, entry: dict[str, Any]) -> None:
        """Tell people of a step that drops more than a tenth; only of such a step the log keeps the examples."""
        examples = entry.pop("examples", [])
        gone = sum(entry.get("dropped", {}).values())
        if gone <= MANY * entry.get("in", 0):
            return
        entry["examples"] = examples
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in entry["dropped"].items())
        self._pool.say(
            f"note: {entry['step']} dropped {gone:,} of {entry['in']:,} lines of {entry['split']} "
            f"({gone / entry['in']:.0%}): {reasons}. The first:"
        )
        for example in examples:
            self._pool.say(f"  {' | '.join(example)}")

    def _done(self, folder: str) -> State | None:
        path = self.work / f"{folder}.json"
        if not path.exists():
            return None
        said = read_json(path)
        return State(**said | {"text": Text.from_json(said["text"])})

    def _check(self, state: State, steps: set[str]) -> None:
        for found in check_counts(self.dataset, state, steps):
            if found["holds"]:
                continue
            message = (
                f"after {found['after']}, {found['split']}: got {found['got']:,} lines, expected {found['expected']} "
                f"({self.dataset.file}: expected; {found['status']})"
            )
            if not self._accept:
                raise UserError(
                    f"{message}; the raw text or a tool is not that of the recorded run: look at the report, fetch the "
                    f"files again, or, if these are what you mean to use, {accepting(self.dataset, self.work.parent)}"
                )
            self._pool.say(f"note: {message}; going on as --accept-counts says")


def check_counts(dataset: Dataset, state: State, steps: set[str]) -> list[dict[str, Any]]:
    """Return what the dataset expects after some of the steps, and what there is."""
    found = []
    for expected in dataset.expected:
        if expected.after not in steps:
            continue
        for split, number in expected.lines.items():
            got = state.text.lines(split)
            for entry in state.log:  # within a pass that has further steps after this one
                if entry["step"] == expected.after and entry["split"] == split and "moved" not in entry:
                    got = entry["out"]
            slack = int(number * expected.tolerance)
            wanted = f"{number:,}" if slack == 0 else f"{number - slack:,} to {number + slack:,}"
            holds = abs(got - number) <= slack
            entry = {"after": expected.after, "split": split, "got": got, "expected": wanted, "status": expected.status}
            found.append({**entry, "holds": holds})
    return found


def _check_none_empty(state: State) -> None:
    if empty := [split for split, lines in state.text.sizes().items() if split in SPLITS and not lines]:
        reasons: Counter[str] = Counter()
        for entry in state.log:
            reasons.update(entry.get("dropped", {}))
        said = ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common()) or "nothing was dropped"
        raise UserError(
            f"empty corpus: no line is left of {' and '.join(empty)} ({state.text}; {said}); "
            "look at the raw text and at the steps in the dataset's YAML, or give more text"
        )
