"""The stages that make a dataset, declared once for ``python -m data_prep`` and ``python -m scripts.reproduce``."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.dataset import FOLDER, Dataset
from data_prep.sources import kind_of
from scripts.common.files import check_path, digest
from scripts.common.outputs import lock
from scripts.pipeline.pipeline import Pipeline, Stage, fingerprint, fingerprint_files

DATASET = "dataset"  # the name of its lock
NAMES = ("download", "prepare", "binarise")
_FETCHED = ("kind", "source", "target", "debian", "files")
"""The keys of a dataset that decide what is downloaded."""


def data_stages(dataset: Dataset, root: Path, *, raw: Path | None = None, options: Sequence[str] = ()) -> list[Stage]:
    """Return the stages that fill ``root``/{raw,prepared,binarised}.

    Args:
        dataset: from its YAML file.
        root: the dataset's folder.
        raw: the folder of files given by hand.
        options: of prepare and binarise; they change nothing about the results.
    """
    name = dataset.name if dataset.file.parent == FOLDER else str(dataset.file)
    facts = dataset.facts()
    binarise = facts.pop("binarise")
    folders = {stage: root / folder for stage, folder in zip(NAMES, ("raw", "prepared", "binarised"), strict=True)}

    def stage(key: str, inputs: dict[str, Any], *arguments: object, replaces: bool = True, **more: Any) -> Stage:
        command = ["-m", f"data_prep.{key}", name, *map(str, arguments), "--out", str(folders[key])]
        return Stage(key, folders[key], inputs, [command], replaces=replaces, **more)

    fetched = {key: facts[key] for key in _FETCHED}
    given = functools.cache(lambda: _given(dataset, raw))
    given_by_hand = ["--raw", raw] if raw else []
    return [
        stage("download", fetched, *given_by_hand, replaces=not kind_of(dataset).resumes, given=given),
        stage("prepare", facts, "--raw", folders["download"], *options, before=("download",)),
        stage("binarise", binarise, "--prepared", folders["prepare"], *options, before=("prepare",)),
    ]


def _given(dataset: Dataset, raw: Path | None) -> str | None:
    """A digest of the user's own files; None if there are none, or no longer."""
    if raw:
        return fingerprint_files(raw, dataset.files)
    paths = [dataset.file.parent / path for path in dataset.text.values()]
    there = paths and all(path.is_file() for path in paths)
    return fingerprint([digest([path]) for path in paths]) if there else None


def run_data_stages(pipeline: Pipeline, root: Path, keys: Sequence[str]) -> None:
    """Run those that are not done, alone in the dataset's folder. Where all are done, others may read meanwhile.

    Raises:
        UserError: fairseq would take the folder's path for another; said before the work.
    """
    check_path(root)
    with lock(root / DATASET, shared=True):
        pending = any(pipeline.to_do(keys).values())
    with lock(root / DATASET, shared=not pending):
        pipeline.run(keys)
