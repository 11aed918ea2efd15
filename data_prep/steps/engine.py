"""Run a dataset's passes one after the other, and resume after the last complete one.

The work folder::

    00-read/             text of the first pass, one file for each split and language; removed when no longer needed
    00-read.json         files and counts of the pass; it exists if the pass is complete
    01-tokenise/ ...     the same for every further pass
    raw/, codes*         files that steps make for the result
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
from data_prep.common.files import copy_file, count_lines, digest, open_counted, read_json, write_json
from data_prep.common.outputs import open_own, remove
from data_prep.common.progress import print_line, progress
from data_prep.common.terminal import clock
from data_prep.dataset import SPLITS, Dataset, Step
from data_prep.steps.corpus import Block, Context, Pool, Text, select
from data_prep.steps.filter import RAW, RAW_PREFIX, held_out_in_train
from data_prep.steps.learn import LEARNT
from data_prep.steps.plan import LINE, STEPS, Pass, plan
from data_prep.steps.read import Piece, Rows, read_pieces, write_rows


class Engine:
    """A run of a dataset's passes in a work folder, whose lock the caller holds."""

    def __init__(self, dataset: Dataset, *, work: Path, pool: Pool, accept_counts: bool) -> None:
        self.dataset, self._work, self._pool, self._accept = dataset, work, pool, accept_counts
        self._passes = [Pass("00-read", (Step(name="read"),)), *plan(dataset, work)]
        self._states: list[Text] = []  # after each pass
        self._expected: list[dict[str, Any]] = []
        if any(work.glob("[0-9][0-9]-*.json")):
            print_line(f"resuming with the results in {work}")

    def run(self, source: Sequence[Piece] | Rows, report: dict[str, Any]) -> None:
        """Run the passes that are not complete.

        Args:
            source: the raw text.
            report: the source's remarks on the raw text, to which it adds while it is read.
        """
        text, names = Text(), [{step.name for step in one_pass.steps} for one_pass in self._passes]
        for index, one_pass in enumerate(self._passes):
            path = self._work / f"{one_pass.folder}.json"
            if path.exists():
                text = Text(**read_json(path))
            else:
                start = time.monotonic()
                text = self._run_pass(one_pass, text, source, report)
                write_json(path, vars(text))
                print_line(f"{one_pass.folder}: done in {clock(time.monotonic() - start)}; {text} lines")
            self._states.append(text)
            self._check(names[index].difference(*names[index + 1 :]))  # the steps that run for the last time
        self._check({"end"})

    def _run_pass(self, one_pass: Pass, text: Text, source: Sequence[Piece] | Rows, report: dict[str, Any]) -> Text:
        """Run a pass on ``text``; returns the text after it."""
        for name, split in ((step.name, split) for step in one_pass.steps for split in step.splits):
            if split not in text.lines:
                raise UserError(
                    f"{self.dataset.file}: {name}.splits: there is no split {split} when this step runs; "
                    f"there are {', '.join(text.lines)}"
                )
        remove(self._work / one_pass.folder)  # of an interrupted run
        needed = {self._work / file for files in text.files.values() for file in files}
        for path in set(self._work.glob("[0-9][0-9]-*/[!.]*")) - needed:
            remove(path)
        (self._work / one_pass.folder).mkdir()
        log: list[dict[str, Any]]
        is_first = not self._states
        with ExitStack() as stack:
            context = Context(text, self._work, one_pass.folder, self.dataset.languages, self._pool, stack)
            if is_first:
                read_pieces(source, context) if isinstance(source, Sequence) else write_rows(source, context)
                log = [{"step": "read", "split": split, "out": count} for split, count in context.lines.items()]
            elif one_pass.whole:
                (step,) = one_pass.steps
                log = STEPS[step.name].build(None, step.parameters)(context, step)
            else:
                log = _run_lines(context, one_pass.steps)
        remarks = dict(report) if is_first else {}
        result = Text(text.lines | context.lines, text.files | context.files, log, remarks)
        if is_first:
            result.report |= self._held_out_in_train(result)
        if empty := [split for split in result.lines if split in SPLITS and not result.lines[split]]:
            reasons = sum((Counter(entry.get("dropped", {})) for entry in log), Counter[str]())
            raise UserError(
                f"empty corpus: no lines are left in {' and '.join(empty)} ({result}; {_in_words(reasons)}); look at "
                "the raw text and at the steps in the dataset's YAML, or give more text"
            )
        return result

    def _held_out_in_train(self, text: Text) -> dict[str, Any]:
        """Count the lines of valid and test that also occur in train, for the report, and print the counts."""
        with ExitStack() as stack:
            languages = self.dataset.languages
            counts = held_out_in_train(Context(text, self._work, "", languages, self._pool, stack))
        for split, numbers in counts.items():
            listed = ", ".join(f"{name} {count:,}" for name, count in numbers.items())
            print_line(f"note: {split} has {text.lines[split]:,} lines; of these also in train: {listed}")
        return {"lines that stand in train, too": counts} if counts else {}

    def _check(self, steps: set[str]) -> None:
        """Compare the numbers of lines with those that the dataset expects after these steps.

        Raises:
            UserError: they differ, and the user does not accept that.
        """
        text = self._states[-1]
        due = [(entry, split) for entry in self.dataset.expected if entry.after in steps for split in entry.lines]
        for entry, split in due:
            number = entry.lines[split]
            got, slack = text.lines.get(split, 0), int(number * entry.tolerance)
            for record in text.log:  # the pass may have further steps after this one
                if record["step"] == entry.after and record["split"] == split and "moved" not in record:
                    got = record["out"]
            holds = abs(got - number) <= slack
            expected = f"{number:,}" if slack == 0 else f"{number - slack:,} to {number + slack:,}"
            facts = {"after": entry.after, "split": split, "got": got, "expected": expected, "status": entry.status}
            self._expected.append({**facts, "holds": holds})
            if not holds:
                note = self.dataset.note_on_counts(
                    f"after {entry.after}, {split}: got {got:,} lines, expected {expected} "
                    f"({self.dataset.file}: expected; {entry.status})",
                    "the raw text or a tool is not that of the recorded run: look at the report, fetch the files "
                    "again, or, if it is the text that you want,",
                    self._work.parent,
                    accept=self._accept,
                )
                print_line(note)

    def finish(self, folder: Path, versions: dict[str, Any]) -> dict[str, Any]:
        """Fill ``folder`` with the result: a file for each split and language, references, BPE merges, counts.json.

        Args:
            folder: an empty folder.
            versions: the versions of the packages, for counts.json.

        Returns:
            the content of counts.json.

        Raises:
            UserError: a line has a carriage return, at which fairseq would split it; or a step dropped lines after
                save_raw, so that references and text are not aligned.
        """
        dataset, last = self.dataset, self._states[-1]
        files: dict[str, dict[str, Any]] = {}
        for name in (f"{split}.{language}" for split in last.lines for language in dataset.languages):
            path = folder / RAW / name.removeprefix(RAW_PREFIX) if name.startswith(RAW_PREFIX) else folder / name
            _join([self._work / file for file in last.files[name]], path)
            files[name] = {"lines": last.lines[name.partition(".")[0]], "sha256": digest([path])}
            if (saved := self._work / RAW / name).exists():
                copy_file(saved, folder / RAW / name)
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


class BlockResult(NamedTuple):
    """The result of line-wise steps on a block."""

    block: Block
    lines: int
    steps: list[dict[str, Any]]
    """For each step: lines ``in`` and ``out``, and a Counter of ``dropped`` lines by reason."""


def _run_lines(context: Context, all_steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Run line-wise steps, each on its splits, in the workers; returns the log."""
    log: list[dict[str, Any]] = []
    title = ", ".join(dict.fromkeys(step.name for step in all_steps))
    for split in context.text.lines:
        steps = [step for step in all_steps if not step.splits or split in step.splits]
        if not steps:
            continue
        run = partial(run_on_block, steps=steps, languages=context.languages)
        totals: list[dict[str, Any]] = [{"in": 0, "out": 0, "dropped": Counter()} for _ in steps]
        context.write(split)
        for result in context.pool.map(run, context.blocks(split, title), title=title):
            context.write(split, result.block, result.lines)
            for total, counts in zip(totals, result.steps, strict=True):
                for key, count in counts.items():
                    total[key] += count
        for step, total in zip(steps, totals, strict=True):
            languages = {"languages": list(step.languages)} if step.languages else {}
            dropped = dict(total["dropped"].most_common())
            log.append({"step": step.name, "split": split, **languages, **total, "dropped": dropped})
    return log


def run_on_block(block: Block, *, steps: Sequence[Step], languages: Sequence[str]) -> BlockResult:
    """Run line-wise steps on a block, in a worker."""
    columns, counts = [side.decode().removesuffix("\n").split("\n") for side in block], []
    for step in steps:
        lines_in, dropped = len(columns[0]), Counter[str]()
        parameters = json.dumps(step.parameters, sort_keys=True)
        if STEPS[step.name].kind == LINE:
            for side, language in enumerate(languages):
                if language in (step.languages or languages):
                    columns[side] = list(map(_function(step.name, language, parameters), columns[side]))
        else:
            reasons = list(map(_function(step.name, None, parameters), *columns))
            if any(reasons):
                dropped.update(filter(None, reasons))
                columns = select(columns, [reason is None for reason in reasons])
        counts.append({"in": lines_in, "out": len(columns[0]), "dropped": dropped})
    lines = len(columns[0])
    new_block = tuple("".join(f"{line}\n" for line in column).encode() for column in columns)
    if any(side.count(b"\n") != lines for side in new_block):
        raise AssertionError(f"one of {[step.name for step in steps]} added line breaks or misaligned the sides")
    return BlockResult(new_block, lines, counts)


@lru_cache(maxsize=64)
def _function(name: str, language: str | None, parameters: str) -> Callable[..., Any]:
    """Build a step's function, once per process: tokenisers and merge tables are slow to build, and cache words."""
    return STEPS[name].build(language, json.loads(parameters))


def _join(files: Sequence[Path], out: Path) -> None:
    """Concatenate files, and show the progress.

    Raises:
        UserError: there are carriage returns in them.
    """
    returns = 0
    with open_own(out, "wb") as f, progress(f"writing {out.name}", sum(map(_size, files)), "B") as advance:
        for file in files:
            with open_counted(file, advance) as part:
                while block := part.read(1 << 20):
                    returns += block.count(b"\r")
                    f.write(block)
    if returns:
        raise UserError(
            f"{out.name}: {returns:,} carriage returns, at which fairseq would split the lines; "
            "add the step normalise_space to the dataset's YAML"
        )


def _size(file: Path) -> int:
    return file.stat().st_size
