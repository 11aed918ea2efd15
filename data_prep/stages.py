"""The stages that make a dataset, declared once for ``python -m data_prep`` and ``python -m scripts.reproduce``."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.dataset import FOLDER, Dataset
from data_prep.sources import kind_of
from scripts.common.files import check_path
from scripts.common.outputs import lock
from scripts.pipeline.pipeline import Pipeline, Stage, fingerprint_files

DATASET = "dataset"  # the name of its lock
NAMES = ("download", "prepare", "binarise")
_FETCHED = ("kind", "source", "target", "debian", "files", "invalid")
"""The keys of a dataset that decide what is downloaded."""


def data_stages(
    dataset: Dataset,
    root: Path,
    *,
    raw: Path | None = None,
    fetching: Sequence[str] = (),
    preparing: Sequence[str] = (),
    binarising: Sequence[str] = (),
) -> list[Stage]:
    """Return the stages that fill ``root``/{raw,prepared,binarised}.

    Args:
        dataset: from its YAML file.
        root: the dataset's folder.
        raw: the folder of files given by hand.
        fetching, preparing, binarising: options for the three commands that change nothing about their results.
    """
    name = dataset.name if dataset.file.parent == FOLDER else str(dataset.file)
    facts = dataset.facts()
    binarise = facts.pop("binarise")
    given = functools.cache(lambda: fingerprint_files(raw, dataset.files) if raw else None)
    folders = {stage: root / folder for stage, folder in zip(NAMES, ("raw", "prepared", "binarised"), strict=True)}

    def stage(key: str, inputs: dict[str, Any], *arguments: object, replaces: bool = True, **more: Any) -> Stage:
        command = ["-m", f"data_prep.{key}", name, *map(str, arguments), "--out", str(folders[key])]
        return Stage(key, folders[key], inputs, [command], replaces=replaces, **more)

    fetched = {key: facts[key] for key in _FETCHED if key in facts}
    given_by_hand = ["--raw", raw] if raw else []
    resumes = kind_of(dataset).resumes
    # not the notes on the way and NAME.bad, which people may delete
    key_files = (*dataset.files, "manifest.json") if resumes else None
    return [
        stage("download", fetched, *given_by_hand, *fetching, replaces=not resumes, key_files=key_files, given=given),
        stage("prepare", facts, "--raw", folders["download"], *preparing, before=("download",)),
        stage("binarise", binarise, "--prepared", folders["prepare"], *binarising, before=("prepare",)),
    ]


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
