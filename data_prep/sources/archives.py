"""Corpora that come as archives from the network: the files, and the members that are train, valid and test."""

from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import read_json
from data_prep.dataset import SPLITS, Dataset
from data_prep.fetch import fetch as fetch_file
from data_prep.steps.read import Piece


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Fetch all files into ``out``, each checked; those that are there and right already stay."""
    before = read_json(out / "manifest.json", {}).get("files", {})
    files = {
        name: fetch_file(name, file, out, raw=raw, before=before.get(name)) for name, file in dataset.files.items()
    }
    return {"files": files}


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """The members that the dataset's splits name."""
    found: dict[tuple[str, str], Piece] = {}
    for split, sources in dataset.splits.items():
        for place, source in enumerate(each for one in sources for each in one.each()):
            for language, member in ((language, source.members[language]) for language in dataset.languages):
                if (source.file, member) in found:
                    raise UserError(f"{dataset.file}: splits: {member} of {source.file} stands in two places")
                archive, how = raw / source.file, (source.reader, source.invalid)
                found[source.file, member] = Piece(split, place, language, archive, member, *how)
    return list(found.values())


def check(dataset: Dataset) -> None:
    """Refuse a dataset of kind archives that lacks a split."""
    there = {*dataset.splits, *(step.parameters.get("into") for step in dataset.steps if step.name == "hold_out")}
    if "test" in there and there <= {"test", "raw_test"}:  # for a model that was trained elsewhere
        return
    if not there & {"valid", "test"} and any(step.name == "split_by_hash" for step in dataset.steps):
        there |= {"valid", "test"}
    if missing := [split for split in SPLITS if split not in there]:
        raise UserError(
            f"{dataset.file}: splits: there is no {' and no '.join(missing)}, nor does a step make it (split_by_hash "
            "makes both valid and test)"
        )
