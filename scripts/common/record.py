"""The run record: one JSON file with everything that a figure in a table rests on."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from scripts.common.config import Config, read_yaml
from scripts.common.errors import UserError
from scripts.common.fairseq import CHECKOUT
from scripts.common.files import read_json
from scripts.common.versions import package_versions

PACKAGES = ("torch", "ve-fairseq", "numpy", "sacrebleu", "sacremoses", "subword-nmt", "rouge-score")


def dataset_file(dataset: str) -> Path:
    """Where a dataset is described."""
    return CHECKOUT / "data_prep" / "datasets" / f"{dataset}.yaml"


def read_dataset(dataset: str) -> dict[str, Any]:
    """A dataset's description, with the two languages that the stages after data_prep rely on.

    Raises:
        UserError: there is none of that name, or it does not name its languages.
    """
    path = dataset_file(dataset)
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml"))) or "none"
        raise UserError(f"no dataset `{dataset}`: there is no {path}; known: {known}")
    content = read_yaml(path)
    for key in ("source", "target"):
        if not isinstance(content.get(key), str):
            raise UserError(f"{path}: `{key}` is {content.get(key)!r}, expected a language such as de")
    return content


def git_state() -> dict[str, Any] | None:
    """The checkout's commit, and whether it has changes since; None where it is not a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(CHECKOUT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != CHECKOUT:
            return None  # a copy without history that happens to lie in somebody else's checkout
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that take part."""
    return {"python": platform.python_version(), **package_versions(PACKAGES)}


def machine() -> dict[str, Any]:
    """The processor, how many cores this process may use, and the GPUs, without importing torch."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: platform's answer stands
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
        gpus = answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []
    return {"cpu": model, "cores": cores, "gpus": gpus}


def build_record(config: Config, stages: dict[str, dict[str, Any]], folders: dict[str, Path]) -> dict[str, Any]:
    """The record of a run so far: what has not been done yet is null.

    Args:
        config: the merged configuration.
        stages: for each completed stage, when, how long and from which commit it was run.
        folders: the folders of the stages train, generate and score.
    """

    def facts(stage: str, name: str) -> Any:
        return read_json(folders[stage] / name) if stage in stages else None

    training = facts("train", "train.json")
    return {
        "model": config.name,
        "config": config.merged(),
        "seed": config.seed,
        "parameters": training and training["parameters"],
        "backend": training and training["backend"],
        "training": training,
        "generation": facts("generate", "generation.json"),
        "scores": facts("score", "scores.json"),
        "stages": stages,
        "versions": versions(),
        "git": git_state(),
        "machine": machine(),
    }
