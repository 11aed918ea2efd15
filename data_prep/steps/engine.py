"""Run a dataset's passes, each on what the one before left, and go on where an earlier run was interrupted.

In the work folder::

    00-read/             the text, a file a split and language; removed when no later pass needs it
    00-read.json         the pass is complete: its files and counts
    01-tokenise/ ...     as many as there are passes
    raw/, codes*         what steps leave for the end
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.common.errors import UserError
from data_prep.common.files import copy_file, count_lines, digest, read_json, write_json
from data_prep.common.outputs import open_own, remove
from data_prep.common.terminal import clock
from data_prep.dataset import SPLITS, Dataset, Step
from data_prep.steps.corpus import Block, Context, Pool, Text, select
from data_prep.steps.filter import RAW, RAW_PREFIX, held_out_in_train
from data_prep.steps.learn import LEARNT
from data_prep.steps.plan import LINE, STEPS, Pass, plan
from data_prep.steps.read import Piece, Rows, read_pieces, write_rows


class Engine:
    """One run of one dataset in one work folder, whose lock the caller holds."""

    def __init__(self, dataset: Dataset, *, work: Path, pool: Pool, accept_counts: bool) -> None:
        self.dataset, self._work, self._pool, self._accept = dataset, work, pool, accept_counts
        self._passes = [Pass("00-read", (Step(name="read"),)), *plan(dataset, work)]
        self._states: list[Text] = []  # after each pass
        self._expected: list[dict[str, Any]] = []
        if any(work.glob("[0-9][0-9]-*.json")):
            pool.say(f"going on with what {work} holds")

    def run(self, source: Sequence[Piece] | Rows, report: dict[str, Any]) -> None:
        """Run all passes that are not complete. ``report`` fills as ``source`` is read."""
        text, names = Text(), [{step.name for step in each.steps} for each in self._passes]
        for place, each in enumerate(self._passes):
            path = self._work / f"{each.folder}.json"
            if path.exists():
                text = Text(**read_json(path))
            else:
                start = time.monotonic()
                text = self._make(each, text, source, report)
                write_json(path, vars(text))
                self._pool.say(f"{each.folder}: done in {clock(time.monotonic() - start)}; {text} lines")
            self._states.append(text)
            self._check(names[place].difference(*names[place + 1 :]))  # the steps that run for the last time
        self._check({"end"})

    def _make(self, each: Pass, before: Text, source: Sequence[Piece] | Rows, report: dict[str, Any]) -> Text:
        for name, split in ((step.name, split) for step in each.steps for split in step.splits):
            if split not in before.lines:
                raise UserError(
                    f"{self.dataset.file}: {name}.splits: there is no split {split} when this step runs; "
                    f"there are {', '.join(before.lines)}"
                )
        remove(self._work / each.folder)  # of a run that was interrupted
        used = {self._work / file for files in before.files.values() for file in files}
        for path in set(self._work.glob("[0-9][0-9]-*/[!.]*")) - used:
            remove(path)
        (self._work / each.folder).mkdir()
        log: list[dict[str, Any]]
        found: dict[str, Any] = {}
        with ExitStack() as stack:
            context = Context(before, self._work, each.folder, self.dataset.languages, self._pool, stack)
            if not self._states:
                read_pieces(source, context) if isinstance(source, Sequence) else write_rows(source, context)
                log, found = [{"step": "read", "split": split, "out": n} for split, n in context.lines.items()], report
            elif each.whole:
                (step,) = each.steps
                log = STEPS[step.name].build(None, step.parameters)(context, step)
            else:
                log = _run_lines(context, each.steps)
        text = Text(before.lines | context.lines, before.files | context.files, log, dict(found))
        if not self._states:
            text.report |= self._held_out_in_train(text)
        if empty := [split for split in text.lines if split in SPLITS and not text.lines[split]]:
            reasons = sum((Counter(entry.get("dropped", {})) for entry in log), Counter[str]())
            raise UserError(
                f"empty corpus: no line is left of {' and '.join(empty)} ({text}; {_in_words(reasons)}); look at the "
                "raw text and at the steps in the dataset's YAML, or give more text"
            )
        return text

    def _held_out_in_train(self, text: Text) -> dict[str, Any]:
        """Count the lines of valid and test that stand in train, for the report, and print the counts."""
        with ExitStack() as stack:
            languages = self.dataset.languages
            counts = held_out_in_train(Context(text, self._work, "", languages, self._pool, stack))
        for split, numbers in counts.items():
            listed = ", ".join(f"{name} {count:,}" for name, count in numbers.items())
            self._pool.say(f"note: {split} has {text.lines[split]:,} lines; of these stand in train, too: {listed}")
        return {"lines that stand in train, too": counts} if counts else {}

    def _check(self, steps: set[str]) -> None:
        """Compare with what the dataset expects after these steps."""
        text = self._states[-1]
        due = [each for each in self.dataset.expected if each.after in steps]
        for each, split, number in ((one, *item) for one in due for item in one.lines.items()):
            got, slack = text.lines.get(split, 0), int(number * each.tolerance)
            for entry in text.log:  # within a pass that has further steps after this one
                if entry["step"] == each.after and entry["split"] == split and "moved" not in entry:
                    got = entry["out"]
            holds = abs(got - number) <= slack
            wanted = f"{number:,}" if slack == 0 else f"{number - slack:,} to {number + slack:,}"
            found = {"after": each.after, "split": split, "got": got, "expected": wanted, "status": each.status}
            self._expected.append({**found, "holds": holds})
            if not holds:
                note = self.dataset.other_counts(
                    f"after {each.after}, {split}: got {got:,} lines, expected {wanted} "
                    f"({self.dataset.file}: expected; {each.status})",
                    "the raw text or a tool is not that of the recorded run: look at the report, fetch the files "
                    "again, or, if these are what you mean to use,",
                    self._work.parent,
                    accept=self._accept,
                )
                self._pool.say(note)

    def finish(self, folder: Path, versions: dict[str, Any]) -> dict[str, Any]:
        """Fill ``folder`` with what binarise reads, a file a split and language; returns what counts.json says.

        Raises:
            UserError: a line holds a carriage return, at which fairseq would break it; or a split of which the
                untokenised lines were saved has other numbers of lines now.
        """
        dataset, last = self.dataset, self._states[-1]
        files: dict[str, dict[str, Any]] = {}
        for name in (f"{split}.{language}" for split in last.lines for language in dataset.languages):
            place = folder / RAW / name.removeprefix(RAW_PREFIX) if name.startswith(RAW_PREFIX) else folder / name
            _join([self._work / file for file in last.files[name]], place)
            files[name] = {"lines": last.lines[name.partition(".")[0]], "sha256": digest([place])}
            if (path := self._work / RAW / name).exists():
                copy_file(path, folder / RAW / name)
        for path in sorted((folder / RAW).glob("[!.]*")):
            lines, split = count_lines(path), path.name.partition(".")[0]
            if lines != last.lines[split]:
                raise UserError(
                    f"raw/{path.name} was saved with {lines:,} lines, but {split} has {last.lines[split]:,} now: "
                    f"a step after save_raw in {dataset.file} drops lines of {split}; name other splits for it"
                )
        for path in sorted(path for path in self._work.iterdir() if path.name.startswith(tuple(LEARNT.values()))):
            copy_file(path, folder / path.name)
        counts = {
            "dataset": dataset.name,
            "source": self._states[0].report,
            "steps": [entry for text in self._states for entry in text.log],
            "files": files,
            "expected": self._expected,
            "versions": versions,
        }
        write_json(folder / "counts.json", counts)
        return counts


def _in_words(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in dropped.items()) or "nothing was dropped"


class Made(NamedTuple):
    """Result of line-wise steps on a block, and its counts."""

    block: Block
    lines: int
    steps: list[dict[str, Any]]
    """For each step lines ``in`` and ``out``, and how many were ``dropped`` for each reason."""


def _run_lines(context: Context, every: Sequence[Step]) -> list[dict[str, Any]]:
    """Run line-wise steps on the splits that each is for; returns the log."""
    log: list[dict[str, Any]] = []
    title = ", ".join(dict.fromkeys(step.name for step in every))
    for split in context.text.lines:
        steps = [step for step in every if not step.splits or split in step.splits]
        if not steps:
            continue
        run = partial(run_on_block, steps=steps, languages=context.languages)
        totals: list[dict[str, Any]] = [{"in": 0, "out": 0, "dropped": Counter()} for _ in steps]
        context.write(split)
        for made in context.pool.map(run, context.blocks(split, title), what=title):
            context.write(split, made.block, made.lines)
            for total, here in zip(totals, made.steps, strict=True):
                for key, count in here.items():
                    total[key] += count
        for step, total in zip(steps, totals, strict=True):
            where = {"languages": list(step.languages)} if step.languages else {}
            dropped = dict(total["dropped"].most_common())
            log.append({"step": step.name, "split": split, **where, **total, "dropped": dropped})
    return log


def run_on_block(block: Block, *, steps: Sequence[Step], languages: Sequence[str]) -> Made:
    """Return what the steps make of a block, in a worker."""
    columns, counts = [side.decode().removesuffix("\n").split("\n") for side in block], []
    for step in steps:
        before, dropped = len(columns[0]), Counter[str]()
        parameters = json.dumps(step.parameters, sort_keys=True)
        if STEPS[step.name].kind == LINE:
            for place, name in enumerate(languages):
                if name in (step.languages or languages):
                    columns[place] = list(map(_function(step.name, name, parameters), columns[place]))
        else:
            reasons = list(map(_function(step.name, None, parameters), *columns))
            if any(reasons):
                dropped.update(filter(None, reasons))
                columns = select(columns, [reason is None for reason in reasons])
        counts.append({"in": before, "out": len(columns[0]), "dropped": dropped})
    lines = len(columns[0])
    made = tuple("".join(f"{line}\n" for line in column).encode() for column in columns)
    if any(side.count(b"\n") != lines for side in made):
        raise AssertionError(f"one of {[step.name for step in steps]} made line breaks, or drew the sides apart")
    return Made(made, lines, counts)


@lru_cache(maxsize=64)
def _function(name: str, language: str | None, parameters: str) -> Callable[..., Any]:
    """A step's function, once a process: tokenisers and merge tables take a moment to make and remember words."""
    return STEPS[name].build(language, json.loads(parameters))


def _join(files: Sequence[Path], out: Path) -> None:
    """Write files one after the other."""
    returns = 0
    with open_own(out, "wb") as f:
        for file in files:
            with open(file, "rb") as part:
                while block := part.read(1 << 20):
                    returns += block.count(b"\r")
                    f.write(block)
    if returns:
        raise UserError(
            f"{out.name}: {returns:,} carriage returns, at which fairseq would break the lines; "
            "put the step normalise_space into the dataset's YAML"
        )
