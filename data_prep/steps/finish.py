"""From the last shards to the files that binarise reads: a file a split and language, whole and checked."""

import hashlib
from pathlib import Path
from typing import Any

from data_prep.dataset import Dataset
from data_prep.steps import raw
from data_prep.steps.engine import READ, Engine, State, check_counts
from data_prep.steps.units import CODES, MODEL
from scripts.common.errors import UserError
from scripts.common.files import copy_file, count_lines, open_own, write_json

LONGEST = 1024
"""The tokens of a line, its end counted, that fairseq's models take unless their configuration says otherwise."""

_SHOWN = 5  # long lines that are named one by one


def finish(engine: Engine, states: list[State], *, folder: Path, versions: dict[str, Any]) -> dict[str, Any]:
    """Fill ``folder``; returns what counts.json says.

    Raises:
        UserError: a line holds a carriage return, at which fairseq would break it; or a split of which the untokenised
            lines were saved has other numbers of lines now.
    """
    dataset, work, last = engine.dataset, engine.work, states[-1]
    files: dict[str, dict[str, Any]] = {}
    for split in last.text.splits:
        for language in dataset.languages:
            name = f"{split}.{language}"
            untokenised = split.startswith(raw.PREFIX)
            place = folder / raw.FOLDER / name.removeprefix(raw.PREFIX) if untokenised else folder / name
            files[name] = _join([shard.path(work, language) for shard in last.text.splits[split]], place)
            expected = (last.text.lines(split), last.sha256[name])
            if (files[name]["lines"], files[name]["sha256"]) != expected:
                raise UserError(f"{work}: the shards of {name} have changed since they were made; remove the folder")
            files[name]["words"] = last.words.get(name)
    for name in files:
        if (path := work / raw.FOLDER / name).exists():
            copy_file(path, folder / raw.FOLDER / name)
    for path in sorted((folder / raw.FOLDER).glob("[!.]*")):
        lines, split = count_lines(path), path.name.partition(".")[0]
        if lines != last.text.lines(split):
            raise UserError(
                f"raw/{path.name} was saved with {lines:,} lines, but {split} has {last.text.lines(split):,} now: a "
                f"step after save_raw in {dataset.file} drops lines of {split}; name other splits for it"
            )
    for path in sorted(path for path in work.iterdir() if path.name.startswith((CODES, MODEL))):
        copy_file(path, folder / path.name)
    passes = {READ: ["read"]} | {each.folder: [step.name for step in each.steps] for each in engine.passes}
    due = zip(states, engine.last_steps, strict=True)
    expectations = [check_counts(dataset, state, steps) for state, steps in due]
    held_out = [name for name in files if name.partition(".")[0] in ("valid", "test")]  # train's may be left out
    long = {name: found for name in held_out if (found := long_lines(folder / name))}
    for name, found in long.items():
        engine.say(f"note: {name} {_long_lines_in_words(dataset, name, found)}")
    counts = {
        "dataset": dataset.name,
        "source": states[0].report,
        "steps": [entry for state in states for entry in state.log],
        "files": files,
        "long": long,
        "expected": [entry for found in [*expectations, check_counts(dataset, last, {"end"})] for entry in found],
        "passes": [
            {"after": name, "steps": steps, "lines": state.text.sizes(), "sha256": state.sha256}
            for (name, steps), state in zip(passes.items(), states, strict=True)
        ],
        "versions": versions,
    }
    write_json(folder / "counts.json", counts)
    write_json(folder / "timings.json", {name: state.seconds for name, state in zip(passes, states, strict=True)})
    return counts


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


def _join(shards: list[Path], out: Path) -> dict[str, Any]:
    total, lines, returns = hashlib.sha256(), 0, 0
    with open_own(out, "wb") as f:
        for shard in shards:
            with open(shard, "rb") as split:
                while block := split.read(1 << 20):
                    total.update(block)
                    lines += block.count(b"\n")
                    returns += block.count(b"\r")
                    f.write(block)
    if returns:
        raise UserError(
            f"{out.name}: {returns:,} carriage returns, at which fairseq would break the lines; "
            "put the step normalise_space into the dataset's YAML"
        )
    return {"lines": lines, "sha256": total.hexdigest()}
