"""Run a dataset's passes, each on what the one before left, and go on where an earlier run was interrupted.

In the work folder::

    00-read/             the text, a file a split and language; removed when no later pass needs it
    00-read.json         the pass is complete: its files, counts, digests
    01-tokenise/ ...     as many as there are passes
    raw/, codes*         what steps leave for the end
"""

import hashlib
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
from data_prep.steps.corpus import EXAMPLES, Context, Text
from data_prep.steps.plan import STEPS, Pass, plan
from data_prep.steps.pool import Pool
from data_prep.steps.read import Piece, read_pieces, write_rows
from data_prep.steps.units import FILES as LEARNT
from data_prep.steps.whole import RAW, RAW_PREFIX
from scripts.common import ownership, scratch
from scripts.common.errors import UserError
from scripts.common.files import copy_file, count_lines, digest, open_own, read_json, write_json
from scripts.common.terminal import clock

Source = Sequence[Piece] | Iterable[tuple[str, Sequence[str]]]
"""Pieces of archives, or rows (the split, and a line a language) that a kind of its own makes."""

MANY = 0.1  # a step that drops more than this share of a split's lines says so
LONGEST = 1024
"""The tokens of a line, its end counted, that fairseq's models take unless their configuration says otherwise."""
_SHOWN = 5  # long lines that are named one by one


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
        self.dataset, self._work, self._pool = dataset, work, pool
        self._keep, self._accept = keep, accept_counts
        self._passes = [Pass("00-read", (Step(name="read"),)), *plan(dataset, work)]
        names = [{step.name for step in each.steps} for each in self._passes]
        self._due = [here.difference(*names[place:]) for place, here in enumerate(names, 1)]
        """The steps that run for the last time in each pass: what is expected after them is due."""
        scratch.remove_leftovers(work)
        if any(work.glob("[0-9][0-9]-*.json")):
            pool.say(f"going on with what {work} holds")

    def run(self, source: Source, report: dict[str, Any]) -> list[State]:
        """All passes that are not complete; returns the states after each. ``report`` fills as ``source`` is read."""
        states: list[State] = []
        for each, due in zip(self._passes, self._due, strict=True):
            path = self._work / f"{each.folder}.json"
            if path.exists():
                said = read_json(path)
                states.append(State(**said | {"text": Text(**said["text"])}))
            else:
                before = states[-1] if states else State(Text({}, {}), [], {}, {}, 0.0, {})
                states.append(self._make(each, before, source, report))
                write_json(path, {**vars(states[-1]), "text": vars(states[-1].text)})
                self._pool.say(f"{each.folder}: done in {clock(states[-1].seconds)}; {states[-1].text} lines")
            self._check(states[-1], due)
        self._check(states[-1], {"end"})
        return states

    def _make(self, each: Pass, before: State, source: Source, report: dict[str, Any]) -> State:
        start = time.monotonic()
        for name, split in ((step.name, split) for step in each.steps for split in step.splits):
            if split not in before.text.lines:
                raise UserError(
                    f"{self.dataset.file}: {name}.splits: there is no split {split} when this step runs; "
                    f"there are {', '.join(before.text.lines)}"
                )
        ownership.remove(self._work / each.folder)  # of a run that was interrupted
        if not self._keep:
            used = {self._work / file for files in before.text.files.values() for file in files}
            for path in set(self._work.glob("[0-9][0-9]-*/[!.]*")) - used:
                ownership.remove(path)
        (self._work / each.folder).mkdir()
        context = Context(self._work, each.folder, self.dataset.languages, self._pool)
        text, log, words, found = before.text, list[dict[str, Any]](), before.words, dict[str, Any]()
        if each is self._passes[0]:
            text = read_pieces(source, context) if isinstance(source, Sequence) else write_rows(source, context)
            log, found = [{"step": "read", "split": split, "out": lines} for split, lines in text.lines.items()], report
        elif each.whole:
            (step,) = each.steps
            text, log = STEPS[step.name].build(None, step.parameters)(context, text, step)
            words = words if text == before.text else {}
        else:
            text, log, words = _run_lines(context, each, before)
        names = [f"{split}.{language}" for split in text.lines for language in self.dataset.languages]
        new = [name for name in names if text.files[name] != before.text.files.get(name)]
        paths = [tuple(self._work / file for file in text.files[name]) for name in new]
        digests = dict(zip(new, self._pool.map(digest, paths, what=f"{each.folder}: checksums"), strict=True))
        for entry in log:
            self._say_many_dropped(entry)
        if empty := [split for split in text.lines if split in SPLITS and not text.lines[split]]:
            reasons = sum((Counter(entry.get("dropped", {})) for entry in log), Counter[str]())
            said = ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common()) or "nothing was dropped"
            raise UserError(
                f"empty corpus: no line is left of {' and '.join(empty)} ({text}; {said}); "
                "look at the raw text and at the steps in the dataset's YAML, or give more text"
            )
        sha256 = {name: digests.get(name) or before.sha256[name] for name in names}
        return State(text, log, words, sha256, round(time.monotonic() - start, 1), dict(found))

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

    def _check(self, state: State, steps: set[str]) -> None:
        for found in _check_counts(self.dataset, state, steps):
            if found["holds"]:
                continue
            message = (
                f"after {found['after']}, {found['split']}: got {found['got']:,} lines, expected {found['expected']} "
                f"({self.dataset.file}: expected; {found['status']})"
            )
            if not self._accept:
                raise UserError(
                    f"{message}; the raw text or a tool is not that of the recorded run: look at the report, fetch the "
                    f"files again, or, if these are what you mean to use, {accepting(self.dataset, self._work.parent)}"
                )
            self._pool.say(f"note: {message}; going on as --accept-counts says")

    def finish(self, states: list[State], *, folder: Path, versions: dict[str, Any]) -> dict[str, Any]:
        """Fill ``folder`` with what binarise reads, a file a split and language; returns what counts.json says.

        Raises:
            UserError: a line holds a carriage return, at which fairseq would break it; or a split of which the
                untokenised lines were saved has other numbers of lines now.
        """
        dataset, last = self.dataset, states[-1]
        files: dict[str, dict[str, Any]] = {}
        for name, sha256 in last.sha256.items():
            untokenised, lines = name.startswith(RAW_PREFIX), last.text.lines[name.partition(".")[0]]
            place = folder / RAW / name.removeprefix(RAW_PREFIX) if untokenised else folder / name
            if _join([self._work / file for file in last.text.files[name]], place) != (lines, sha256):
                raise UserError(
                    f"{self._work}: the files of {name} have changed since they were made; remove the folder"
                )
            files[name] = {"lines": lines, "sha256": sha256, "words": last.words.get(name)}
            if (path := self._work / RAW / name).exists():
                copy_file(path, folder / RAW / name)
        for path in sorted((folder / RAW).glob("[!.]*")):
            lines, split = count_lines(path), path.name.partition(".")[0]
            if lines != last.text.lines[split]:
                raise UserError(
                    f"raw/{path.name} was saved with {lines:,} lines, but {split} has {last.text.lines[split]:,} now: "
                    f"a step after save_raw in {dataset.file} drops lines of {split}; name other splits for it"
                )
        for path in sorted(path for path in self._work.iterdir() if path.name.startswith(tuple(LEARNT.values()))):
            copy_file(path, folder / path.name)
        held_out = [name for name in files if name.partition(".")[0] in ("valid", "test")]  # train's may be left out
        long = {name: found for name in held_out if (found := long_lines(folder / name))}
        for name, found in long.items():
            self._pool.say(f"note: {name} {_long_lines_in_words(dataset, name, found)}")
        due = [*zip(states, self._due, strict=True), (last, {"end"})]
        counts = {
            "dataset": dataset.name,
            "source": states[0].report,
            "steps": [entry for state in states for entry in state.log],
            "files": files,
            "long": long,
            "expected": [entry for state, steps in due for entry in _check_counts(dataset, state, steps)],
            "passes": [
                {
                    "after": each.folder,
                    "steps": [step.name for step in each.steps],
                    "lines": state.text.lines,
                    "sha256": state.sha256,
                }
                for each, state in zip(self._passes, states, strict=True)
            ],
            "versions": versions,
        }
        write_json(folder / "counts.json", counts)
        seconds = {each.folder: state.seconds for each, state in zip(self._passes, states, strict=True)}
        write_json(folder / "timings.json", seconds)
        return counts


def _run_lines(context: Context, each: Pass, before: State) -> tuple[Text, list[dict[str, Any]], dict[str, int]]:
    """Run line-wise steps on the splits that each is for."""
    log: list[dict[str, Any]] = []
    words, title = dict(before.words), ", ".join(dict.fromkeys(step.name for step in each.steps))
    with context.writer() as writer:
        for split in before.text.lines:
            steps = [step for step in each.steps if not step.splits or split in step.splits]
            if not steps:
                continue
            run = partial(linewise.run, steps=steps, languages=context.languages)
            totals: list[dict[str, Any]] = [{"in": 0, "out": 0, "dropped": Counter(), "examples": []} for _ in steps]
            counted, not_utf8 = [0] * len(context.languages), 0
            writer.write(split, [b""] * len(context.languages), 0)
            for made in context.pool.map(run, context.blocks(before.text, split, title), what=title):
                writer.write(split, made.block, made.lines)
                not_utf8 += made.not_utf8
                counted = [sum(pair) for pair in zip(counted, made.words, strict=True)]
                for total, here in zip(totals, made.steps, strict=True):
                    for key, count in here.items():
                        total[key] += Counter(count) if key == "dropped" else count
                    del total["examples"][EXAMPLES:]
            words |= {f"{split}.{name}": count for name, count in zip(context.languages, counted, strict=True)}
            if not_utf8:
                lines = before.text.lines[split]
                entry = {"step": "read", "split": split, "in": lines, "out": lines - not_utf8}
                log.append({**entry, "dropped": {linewise.NOT_UTF8: not_utf8}})
            for step, total in zip(steps, totals, strict=True):
                where = {"languages": list(step.languages)} if step.languages else {}
                dropped = dict(total["dropped"].most_common())
                log.append({"step": step.name, "split": split, **where, **total, "dropped": dropped})
    return before.text.replace(writer.lines, writer.files()), log, words


def _check_counts(dataset: Dataset, state: State, steps: set[str]) -> list[dict[str, Any]]:
    """Return what the dataset expects after some of the steps, and what there is."""
    found = []
    for expected in dataset.expected:
        if expected.after not in steps:
            continue
        for split, number in expected.lines.items():
            got = state.text.lines.get(split, 0)
            for entry in state.log:  # within a pass that has further steps after this one
                if entry["step"] == expected.after and entry["split"] == split and "moved" not in entry:
                    got = entry["out"]
            slack = int(number * expected.tolerance)
            wanted = f"{number:,}" if slack == 0 else f"{number - slack:,} to {number + slack:,}"
            holds = abs(got - number) <= slack
            entry = {"after": expected.after, "split": split, "got": got, "expected": wanted, "status": expected.status}
            found.append({**entry, "holds": holds})
    return found


def long_lines(path: Path) -> dict[str, Any]:
    """Count the lines of more than LONGEST tokens; with the longest, and the first few as (number, tokens)."""
    first: list[tuple[int, int]] = []
    lines = longest = 0
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if len(line) < 2 * LONGEST or (tokens := len(line.decode().split()) + 1) <= LONGEST:
                continue
            lines, longest = lines + 1, max(longest, tokens)
            first += [(number, tokens)] if len(first) < _SHOWN else []
    return {"lines": lines, "longest": longest, "first": first} if lines else {}


def _long_lines_in_words(dataset: Dataset, name: str, found: dict[str, Any]) -> str:
    which = ", ".join(f"line {number:,} ({tokens:,})" for number, tokens in found["first"])
    more = ", ..." if found["lines"] > len(found["first"]) else ""
    side = "source" if name.endswith(f".{dataset.source}") else "target"
    flag = "tokens-per-sample" if dataset.target is None else f"max-{side}-positions"
    return (
        f"has {found['lines']:,} lines of more than {LONGEST:,} tokens, the end of the line counted: {which}{more}; "
        f"fairseq's models take no more unless told: set train.{flag}: {found['longest']} in the configuration, or "
        f"shorten or drop such lines by a step truncate or clean in {dataset.file.name}"
    )


def _join(files: list[Path], out: Path) -> tuple[int, str]:
    """Write files one after the other; returns the lines and their SHA-256."""
    total, lines, returns = hashlib.sha256(), 0, 0
    with open_own(out, "wb") as f:
        for file in files:
            with open(file, "rb") as part:
                while block := part.read(1 << 20):
                    total.update(block)
                    lines += block.count(b"\n")
                    returns += block.count(b"\r")
                    f.write(block)
    if returns:
        raise UserError(
            f"{out.name}: {returns:,} carriage returns, at which fairseq would break the lines; "
            "put the step normalise_space into the dataset's YAML"
        )
    return lines, total.hexdigest()
