"""Corpora that come as archives from the network: the files, and the members that are train, valid and test."""

from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset
from data_prep.fetch import fetch as fetch_file
from data_prep.steps.read import Piece
from scripts.common.errors import UserError
from scripts.common.files import read_json, read_lines


def fetch(dataset: Dataset, raw: Path | None, out: Path) -> dict[str, Any]:
    """Fetch all files into ``out``, each checked; those that are there and right already stay."""
    if raw is not None and not any((raw / name).exists() for name in dataset.files):
        raise UserError(
            f"--raw {raw} has none of {', '.join(dataset.files)}; put files there under these names, packed as they "
            "are, or leave --raw out to fetch all"
        )
    before = read_json(out / "manifest.json", {}).get("files", {})
    files = {
        name: fetch_file(name, file, out, raw=raw, before=before.get(name)) for name, file in dataset.files.items()
    }
    return {"licence": dataset.licence, "files": files}


def pieces(dataset: Dataset, raw: Path, _report: dict[str, Any]) -> list[Piece]:
    """The members that the dataset's splits name."""
    md5: dict[str, dict[str, str]] = {}
    for name, file in dataset.files.items():
        if not (raw / name).is_file():
            raise UserError(f"{raw} has no {name}; run python -m data_prep.download {dataset.name} again")
        md5[name] = _member_md5(dataset, file.member_md5) if file.member_md5 is not None else {}
    found: dict[tuple[str, str], Piece] = {}
    for split, sources in dataset.splits.items():
        for place, source in enumerate(each for one in sources for each in one.each()):
            for language, member in ((language, source.members[language]) for language in dataset.languages):
                sums = md5[source.file]
                checksum = next((sums[end] for end in sums if f"/{member}".endswith(f"/{end}")), None)
                if sums and checksum is None:
                    table = dataset.files[source.file].member_md5
                    raise UserError(f"{dataset.file}: splits.{split}: {table} has no checksum for {member}")
                if (source.file, member) in found:
                    raise UserError(f"{dataset.file}: splits: {member} of {source.file} stands in two places")
                archive, how = raw / source.file, (source.reader, source.invalid, checksum)
                found[source.file, member] = Piece(split, place, language, archive, member, *how)
    return list(found.values())


def _member_md5(dataset: Dataset, name: str) -> dict[str, str]:
    lines = (line.split() for line in read_lines(dataset.file.parent / name) if line and line[0] != "#")
    return {end: checksum for checksum, end in lines}


def check(dataset: Dataset) -> None:
    """Refuse a dataset of kind archives without files or splits."""
    for key, value in (("files", dataset.files), ("splits", dataset.splits)):
        if not value:
            raise UserError(f"{dataset.file}: the key {key} is missing; a dataset of kind archives has it")
    if dataset.splits.keys() <= {"test", "raw_test"}:  # for a model that was trained elsewhere
        return
    there = {*dataset.splits, *(step.parameters.get("into") for step in dataset.steps if step.name == "hold_out")}
    if any(step.name == "split_by_hash" for step in dataset.steps):
        if len(one := there & {"valid", "test"}) == 1:
            raise UserError(
                f"{dataset.file}: split_by_hash makes valid and test: give both under splits, not {one.pop()} alone"
            )
        there |= {"valid", "test"}
    if missing := [split for split in SPLITS if split not in there]:
        raise UserError(f"{dataset.file}: splits: there is no {' and no '.join(missing)}, nor does a step make it")
