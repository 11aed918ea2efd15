"""The stages that make a dataset, declared once for ``python -m data_prep`` and ``python -m scripts.reproduce``."""

from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.dataset import FOLDER, Dataset
from data_prep.sources import kind_of
from scripts.common.lock import folder_lock
from scripts.pipeline.pipeline import Pipeline, Stage

NAMES = ("download", "prepare", "binarise")
_FETCHED = ("kind", "source", "target", "debian", "files", "invalid")
"""The keys of a dataset that decide what is downloaded."""


def data_stages(
    dataset: Dataset,
    root: Path,
    *,
    raw: Path | None = None,
    given: Callable[[], str | None] = lambda: None,
    fetching: Sequence[str] = (),
    preparing: Sequence[str] = (),
    binarising: Sequence[str] = (),
) -> list[Stage]:
    """Return the stages that fill ``root``/{raw,prepared,binarised}.

    Args:
        dataset: from its YAML file.
        root: the dataset's folder.
        raw: the folder of files given by hand.
        given: gives its fingerprint.
        fetching, preparing, binarising: options for the three commands that change nothing about their results.
    """
    name = dataset.name if dataset.file.parent == FOLDER else str(dataset.file)
    facts = dataset.facts()
    binarise = facts.pop("binarise")
    folders = {stage: root / folder for stage, folder in zip(NAMES, ("raw", "prepared", "binarised"), strict=True)}

    def command(stage: str, *arguments: object) -> list[list[str]]:
        return [["-m", f"data_prep.{stage}", name, *map(str, arguments), "--out", str(folders[stage])]]

    return [
        Stage(
            "download",
            folders["download"],
            {key: facts[key] for key in _FETCHED if key in facts},
            command("download", *(["--raw", raw] if raw else []), *fetching),
            replaces=not kind_of(dataset).resumes,
            given=given,
        ),
        Stage(
            "prepare",
            folders["prepare"],
            facts,
            command("prepare", "--raw", folders["download"], *preparing),
            ("download",),
            replaces=True,
        ),
        Stage(
            "binarise",
            folders["binarise"],
            binarise,
            command("binarise", "--prepared", folders["prepare"], *binarising),
            ("prepare",),
            replaces=True,
        ),
    ]


def run_data_stages(pipeline: Pipeline, root: Path, keys: Sequence[str]) -> None:
    """Run those that are not done, alone in the dataset's folder. Where all are done, others may read meanwhile."""
    with folder_lock(root, shared=True):
        pending = any(pipeline.to_do(keys).values())
    with folder_lock(root, shared=not pending):
        pipeline.run(keys)
