"""A user's own parallel text: one sentence a line, line n of one language translating line n of the other."""

from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset
from data_prep.sources.corpus import SUFFIXES, copy_plain, require_folder
from data_prep.steps.extract import Piece
from scripts.common.errors import UserError
from scripts.common.files import open_own


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Copy the files of the user's folder: train, valid and test, or train alone."""
    if raw is None:
        raise UserError(f"the text of {dataset.name} is your own; say with --raw DIR where it lies")
    require_folder(raw)
    taken = {}
    for part in SPLITS:
        found = {language: _find(raw, f"{part}.{language}") for language in dataset.languages}
        missing = [f"{part}.{language}" for language, path in found.items() if path is None]
        if len(missing) == len(found) and part != "train":
            continue
        if missing:
            raise UserError(f"{raw} has no {' and no '.join(missing)}; put both sides of {part} there")
        for language, path in found.items():
            assert path is not None
            with open_own(out / f"{part}.{language}", "wb") as f:
                copy_plain(path, f)
            taken[f"{part}.{language}"] = path.name
    _parts(raw, {name.partition(".")[0] for name in taken})
    return {"taken from the folder given with --raw": taken}


def pieces(dataset: Dataset, raw: Path) -> list[Piece]:
    """The files of a folder that ``fetch`` filled."""
    present = {part for part in SPLITS if any((raw / f"{part}.{language}").exists() for language in dataset.languages)}
    present.add("train")  # whose absence is then reported with its path
    return [
        Piece(part, 0, language, raw / f"{part}.{language}", f"{part}.{language}")
        for part in _parts(raw, present)
        for language in dataset.languages
    ]


def _parts(raw: Path, present: set[str]) -> list[str]:
    if len(present) == 2:
        missing = next(part for part in SPLITS if part not in present)
        raise UserError(
            f"{raw} has {' and '.join(sorted(present))} but no {missing}; "
            "give train, valid and test, or train alone, which is then split"
        )
    return [part for part in SPLITS if part in present]


def _find(raw: Path, name: str) -> Path | None:
    return next((raw / (name + suffix) for suffix in SUFFIXES if (raw / (name + suffix)).is_file()), None)
