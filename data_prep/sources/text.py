"""The user's own parallel text: one sentence per line; line n of one language translates line n of the other."""

from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.outputs import open_own
from data_prep.common.progress import progress
from data_prep.dataset import SPLITS, Dataset
from data_prep.sources.supplied import SuppliedText, check_sides
from data_prep.steps.read import Piece


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Copy the user's files, train and perhaps valid and test, as clean text; print the numbers of changed lines.

    The files are those of the folder ``raw``, or those that the dataset's key ``text`` names.
    """
    changed: dict[str, dict[str, int]] = {}
    for split, files in own_files(dataset, raw).items():
        size = sum(path.stat().st_size for path in files.values())
        with ExitStack() as stack:
            advance = stack.enter_context(progress(f"copying {split}", size, "B"))
            texts = [SuppliedText(path, advance) for path in files.values()]
            sides = [stack.enter_context(open_own(out / f"{split}.{side}", "wb")) for side in files]
            for row in zip_longest(*texts, fillvalue=b""):  # sides of different lengths are an error below
                for side, line in zip(sides, row, strict=True):
                    side.write(line + b"\n")
        if len({text.lines for text in texts}) != 1:
            counts = " but ".join(f"{text.path} has {text.lines:,} lines" for text in texts)
            raise UserError(f"{counts}; line n of one must translate line n of the other: correct the files")
        changed |= {f"{split}: {text.path.name}": dict(text.changes) for text in texts if text.changes}
    for name, changes in changed.items():
        print(f"{name}: {', '.join(f'{change}: {count:,}' for change, count in changes.items())}", flush=True)
    return {"changed in your text": changed} if changed else {}


def own_files(dataset: Dataset, raw: Path | None) -> dict[str, dict[str, Path]]:
    """Return the user's files by split and language, from the folder ``raw`` or as the dataset names them.

    Raises:
        UserError: no files are named, one does not exist or is not a file, both sides of a split are the same file, or
            only one of valid and test exists.
    """
    names = {split: {side: f"{split}.{side}" for side in dataset.languages} for split in SPLITS}
    if raw is None:
        folder, paths = dataset.file.parent, dataset.text
        if not paths:
            raise UserError(
                f"the text of {dataset.name} is your own; give its folder with --raw DIR, or name its files under "
                f"`text` in {dataset.file}, as python -m scripts.own_text does"
            )
    else:
        folder, paths = raw, {path.name: path.name for path in raw.glob("*.*")}
    files = {
        split: {side: folder / paths.get(name, name) for side, name in sides.items()}
        for split, sides in names.items()
        if split == "train" or not paths.keys().isdisjoint(sides.values())
    }
    for sides in files.values():
        check_sides([*sides.values()])
    if missing := [path for sides in files.values() for path in sides.values() if not path.is_file()]:
        absent = " and no ".join(map(str, missing))
        raise UserError(f"there is no {absent}; give both sides, as plain text under these names")
    if len(files) == 2:
        absent = next(split for split in SPLITS if split not in files)
        raise UserError(
            f"got {' and '.join(files)} but no {absent}; give train, valid and test, or only train, which is then split"
        )
    return files


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """List the files in a folder that ``fetch`` filled."""
    return [
        Piece(split, 0, side, path, path.name)
        for split, sides in own_files(dataset, raw).items()
        for side, path in sides.items()
    ]
