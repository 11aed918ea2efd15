"""Corpora in archives from the network: their files, and the members with the text of train, valid and test."""

from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import read_json
from data_prep.dataset import SPLITS, Dataset
from data_prep.fetch import fetch as fetch_file
from data_prep.steps.read import Piece


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Fetch all files into ``out`` and test them; a file that is already there and passes the test stays."""
    records = read_json(out / "manifest.json", {}).get("files", {})
    files = {
        name: fetch_file(name, file, out, raw=raw, first=records.get(name)) for name, file in dataset.files.items()
    }
    return {"files": files}


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """List the members that the dataset's splits name."""
    members: dict[tuple[str, str], Piece] = {}
    for split, sources in dataset.splits.items():
        numbered = [member_set for source in sources for member_set in source.expand()]
        for index, source in enumerate(numbered):
            for language in dataset.languages:
                member = source.members[language]
                if (source.file, member) in members:
                    raise UserError(f"{dataset.file}: splits: {member} of {source.file} is named twice")
                members[source.file, member] = Piece(
                    split, index, language, raw / source.file, member, source.reader, source.invalid
                )
    return list(members.values())


def check(dataset: Dataset) -> None:
    """Raise a UserError if a dataset of the kind ``archives`` lacks a split."""
    splits = {*dataset.splits, *(step.parameters.get("into") for step in dataset.steps if step.name == "hold_out")}
    if "test" in splits and splits <= {"test", "raw_test"}:  # a test set alone, for a model that exists already
        return
    if not splits & {"valid", "test"} and any(step.name == "split_by_hash" for step in dataset.steps):
        splits |= {"valid", "test"}
    if missing := [split for split in SPLITS if split not in splits]:
        raise UserError(
            f"{dataset.file}: splits: there is no {' and no '.join(missing)}, and no step makes it (split_by_hash "
            "makes both valid and test)"
        )
