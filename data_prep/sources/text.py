"""A user's own parallel text: one sentence a line, line n of one language translating line n of the other."""

from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.outputs import open_own
from data_prep.dataset import SPLITS, Dataset
from data_prep.sources.supplied import SuppliedText, check_sides
from data_prep.steps.read import Piece


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Copy the user's files as clean text: train, valid and test, or train alone. Changed lines are counted and said.

    The files are those of a folder, ``raw``, or those that the dataset's key ``text`` names.
    """
    changed: dict[str, dict[str, int]] = {}
    for split, files in own_files(dataset, raw).items():
        texts = [SuppliedText(path) for path in files.values()]
        with ExitStack() as stack:
            sides = [stack.enter_context(open_own(out / f"{split}.{side}", "wb")) for side in files]
            for rows in zip_longest(*texts, fillvalue=b""):  # unequal sides are refused below
                for side, row in zip(sides, rows, strict=True):
                    side.write(row + b"\n")
        if len({text.lines for text in texts}) != 1:
            counts = " but ".join(f"{text.path} has {text.lines:,} lines" for text in texts)
            raise UserError(f"{counts}; line n of one must translate line n of the other: mend the files")
        changed |= {f"{split}: {text.path.name}": dict(text.changes) for text in texts if text.changes}
    for name, found in changed.items():
        print(f"{name}: {', '.join(f'{what}: {times:,}' for what, times in found.items())}", flush=True)
    return {"changed in your text": changed} if changed else {}


def own_files(dataset: Dataset, raw: Path | None) -> dict[str, dict[str, Path]]:
    """The user's files by split and language, from a folder or as the dataset names them.

    Raises:
        UserError: none are named, one is missing or no file, both sides of a split are the same, or there is a valid
            set and no test set, or the other way round.
    """
    names = {split: {side: f"{split}.{side}" for side in dataset.languages} for split in SPLITS}
    if raw is None:
        folder, given = dataset.file.parent, dataset.text
        if not given:
            raise UserError(
                f"the text of {dataset.name} is your own; give its folder with --raw DIR, or name its files under "
                f"`text` in {dataset.file}, as python -m scripts.own_text does"
            )
    else:
        folder, given = raw, {path.name: path.name for path in raw.glob("*.*")}
    found = {
        split: {side: folder / given.get(name, name) for side, name in sides.items()}
        for split, sides in names.items()
        if split == "train" or not given.keys().isdisjoint(sides.values())
    }
    for sides in found.values():
        check_sides([*sides.values()])
    if missing := [path for sides in found.values() for path in sides.values() if not path.is_file()]:
        absent = " and no ".join(map(str, missing))
        raise UserError(f"there is no {absent}; give both sides, as plain text under these names")
    if len(found) == 2:
        absent = next(split for split in SPLITS if split not in found)
        raise UserError(
            f"got {' and '.join(found)} but no {absent}; give train, valid and test, or train alone, which then is "
            "split"
        )
    return found


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """The files of a folder that ``fetch`` filled."""
    return [
        Piece(split, 0, side, path, path.name)
        for split, sides in own_files(dataset, raw).items()
        for side, path in sides.items()
    ]
