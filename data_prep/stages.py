"""The stages that make a dataset: for ``python -m data_prep`` and for ``python -m scripts.reproduce``."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.common.files import check_path, digest
from data_prep.common.outputs import lock
from data_prep.common.pipeline import Pipeline, Stage, fingerprint, fingerprint_files
from data_prep.dataset import FOLDER, Dataset
from data_prep.sources import kind_of

DATASET = "dataset"  # the name of the lock of a dataset's folder
NAMES = ("download", "prepare", "binarise")


def data_stages(dataset: Dataset, root: Path, *, raw: Path | None = None, options: Sequence[str] = ()) -> list[Stage]:
    """Return the stages that fill ``root``/{raw,prepared,binarised}.

    Args:
        dataset: the dataset.
        root: the folder of its results.
        raw: a folder with files that the user fetched, if any.
        options: options of prepare and binarise that do not change the results.
    """
    name = dataset.name if dataset.file.parent == FOLDER else str(dataset.file)
    facts = dataset.facts()
    binarise = facts.pop("binarise")
    fetched, prepared, binarised = (root / folder for folder in ("raw", "prepared", "binarised"))

    def stage(key: str, out: Path, inputs: dict[str, Any], *arguments: object, **more: Any) -> Stage:
        command = ["-m", f"data_prep.{key}", name, *map(str, arguments), "--out", str(out)]
        return Stage(key, out, inputs, [command], **{"replaces": True, **more})

    decisive = {key: facts[key] for key in ("kind", "source", "target", "debian", "files")}
    supplied = functools.cache(lambda: _fingerprint_supplied(dataset, raw))  # once for all questions of the pipeline
    resumes = kind_of(dataset).resumes
    raw_option = ["--raw", raw] if raw else []
    return [
        stage("download", fetched, decisive, *raw_option, supplied=supplied, replaces=not resumes),
        stage("prepare", prepared, facts, "--raw", fetched, *options, depends_on=("download",)),
        stage("binarise", binarised, binarise, "--prepared", prepared, *options, depends_on=("prepare",)),
    ]


def _fingerprint_supplied(dataset: Dataset, raw: Path | None) -> str | None:
    """Hash the files that the user supplied; None if there are none, or if they have been removed since."""
    if raw:
        return fingerprint_files(raw, dataset.files)
    paths = [dataset.file.parent / path for path in dataset.text.values()]
    if not paths or not all(path.is_file() for path in paths):
        return None
    return fingerprint([digest([path]) for path in paths])


def run_data_stages(pipeline: Pipeline, root: Path, keys: Sequence[str]) -> None:
    """Run the stages that are not up to date, under the lock of the dataset's folder.

    The lock is exclusive only if a stage runs: otherwise others may read the folder at the same time.

    Raises:
        UserError: fairseq cannot read the folder's path; raised before the first stage.
    """
    check_path(root)
    with lock(root / DATASET, shared=True):
        pending = any(pipeline.to_do(keys).values())
    with lock(root / DATASET, shared=not pending):
        pipeline.run(keys)
