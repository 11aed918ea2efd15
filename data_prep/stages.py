"""The stages that make a dataset, declared once for ``python -m data_prep`` and ``python -m scripts.reproduce``."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.common.files import check_path, digest
from data_prep.common.outputs import lock
from data_prep.common.pipeline import Pipeline, Stage, fingerprint, fingerprint_files
from data_prep.dataset import FOLDER, Dataset
from data_prep.sources import kind_of

DATASET = "dataset"  # the name of its lock
NAMES = ("download", "prepare", "binarise")


def data_stages(dataset: Dataset, root: Path, *, raw: Path | None = None, options: Sequence[str] = ()) -> list[Stage]:
    """Return the stages that fill ``root``/{raw,prepared,binarised}.

    ``raw`` is the folder of files given by hand; ``options`` of prepare and binarise change nothing about the results.
    """
    name = dataset.name if dataset.file.parent == FOLDER else str(dataset.file)
    facts = dataset.facts()
    binarise = facts.pop("binarise")
    fetched, prepared, binarised = (root / folder for folder in ("raw", "prepared", "binarised"))

    def stage(key: str, out: Path, inputs: dict[str, Any], *arguments: object, **more: Any) -> Stage:
        command = ["-m", f"data_prep.{key}", name, *map(str, arguments), "--out", str(out)]
        return Stage(key, out, inputs, [command], **{"replaces": True, **more})

    decisive = {key: facts[key] for key in ("kind", "source", "target", "debian", "files")}
    how = {"given": functools.cache(lambda: _given(dataset, raw)), "replaces": not kind_of(dataset).resumes}
    return [
        stage("download", fetched, decisive, *(["--raw", raw] if raw else []), **how),
        stage("prepare", prepared, facts, "--raw", fetched, *options, before=("download",)),
        stage("binarise", binarised, binarise, "--prepared", prepared, *options, before=("prepare",)),
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
