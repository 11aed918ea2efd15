"""A user's own parallel text: one sentence a line, line n of one language translating line n of the other."""

from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset
from data_prep.sources.supplied import SuppliedText
from data_prep.steps.read import Piece
from scripts.common.errors import UserError
from scripts.common.outputs import open_own


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Copy the files of the user's folder as clean text: train, valid and test, or train alone.

    Whatever the copies leave out or have otherwise is said and counted.
    """
    if raw is None:
        raise UserError(
            f"the text of {dataset.name} is your own; give its folder with --raw DIR, or python -m data_prep its files "
            "with --src FILE and --tgt FILE"
        )
    changed: dict[str, dict[str, int]] = {}
    for split in _splits(dataset, raw):
        texts = [SuppliedText(raw / f"{split}.{side}", invalid=dataset.invalid) for side in dataset.languages]
        dropped = _copy(texts, [out / f"{split}.{side}" for side in dataset.languages])
        changed |= {f"{split}: {text.path.name}": dict(text.changes) for text in texts if text.changes}
        if dropped:
            changed[split] = {"pairs dropped": dropped}
    for name, counts in changed.items():
        print(f"{name}: {', '.join(f'{what}: {times:,}' for what, times in counts.items())}", flush=True)
    return {"changed in your text": changed} if changed else {}


def _copy(texts: list[SuppliedText], places: list[Path]) -> int:
    """Write the sides of a split; returns how many pairs were dropped."""
    ended = b"\n"  # no line holds it
    kept = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open_own(place, "wb")) for place in places]
        for rows in zip_longest(*texts, fillvalue=ended):
            if ended in rows or None in rows:
                continue
            kept += 1
            for file, row in zip(files, rows, strict=True):
                file.write((row or b"") + b"\n")
    if len({text.lines for text in texts}) != 1:
        counts = " but ".join(f"{text.path} has {text.lines:,} lines" for text in texts)
        raise UserError(f"{counts}; line n of one must translate line n of the other: mend the files")
    if not kept:
        names = " and ".join(str(text.path) for text in texts)
        raise UserError(f"{names}: no pair is left, all have bytes that are not UTF-8; convert the files")
    return texts[0].lines - kept


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """The files of a folder that ``fetch`` filled, or of one that holds such text without it.

    Raises:
        UserError: ``fetch`` did not fill it, and would change something in its text.
    """
    names = [
        (split, language, f"{split}.{language}") for split in _splits(dataset, raw) for language in dataset.languages
    ]
    for path in [raw / name for *_, name in names if not (raw / "manifest.json").is_file()]:
        text = SuppliedText(path, invalid="error")
        for _ in text:
            if changed := text.changes:
                raise UserError(
                    f"{path}, line {text.lines:,}: {', '.join(changed)}, which download.py alone does; run python -m "
                    f"data_prep.download {dataset.name} --raw {raw} --out FOLDER, and give FOLDER here"
                )
    return [Piece(split, 0, language, raw / name, name) for split, language, name in names]


def _splits(dataset: Dataset, raw: Path) -> list[str]:
    """The splits that there are, with all their sides."""
    sides = dataset.languages
    there = [
        split for split in SPLITS if split == "train" or any((raw / f"{split}.{side}").is_file() for side in sides)
    ]
    names = [f"{split}.{side}" for split in there for side in sides]
    if missing := [name for name in names if not (raw / name).is_file()]:
        near = ", ".join(sorted(path.name for path in raw.glob(f"{missing[0]}*")))
        raise UserError(
            f"{raw} has no {' and no '.join(missing)}{f' (but {near})' if near else ''}; put both sides there, as "
            "plain text under these names"
        )
    if len(there) == 2:
        missing = [split for split in SPLITS if split not in there]
        raise UserError(
            f"{raw} has {' and '.join(there)} but no {missing[0]}; give train, valid and test, or train alone, which "
            "is then split"
        )
    return there
