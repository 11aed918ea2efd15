"""The run record: one JSON file with everything that a figure in a table rests on."""

import os
import platform
import shutil
import subprocess
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.common.config import Config
from scripts.common.errors import UserError
from scripts.common.fairseq import CHECKOUT
from scripts.common.files import read_json
from scripts.common.selection import numbers, summarise
from scripts.common.strict_yaml import read_yaml
from scripts.common.versions import package_versions

PACKAGES = ("torch", "ve-fairseq", "numpy", "sacrebleu", "sacremoses", "subword-nmt", "rouge-score")


def dataset_file(dataset: str) -> Path:
    """Where a dataset is described."""
    return CHECKOUT / "data_prep" / "datasets" / f"{dataset}.yaml"


def read_dataset(dataset: str) -> dict[str, Any]:
    """A dataset's description, with the languages that the stages after data_prep rely on: text for language models
    has no ``target``.

    Raises:
        UserError: there is none of that name, or it does not name its languages.
    """
    path = dataset_file(dataset)
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml"))) or "none"
        raise UserError(f"no dataset `{dataset}`: there is no {path}; known: {known}")
    content = read_yaml(path)
    for key in ("source", "target"):
        if not isinstance(content.get(key), str) and (key == "source" or key in content):
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


def signature(config: Config, settings: dict[str, Any]) -> str:
    """What a score was measured with, beside the score's own definition: ``settings``, then the versions."""
    commit = git_state()
    parts = {
        "model": config.name,
        "data": config.dataset,
        **settings,
        "commit": commit["commit"][:10] + ("+changes" if commit["changed"] else "") if commit else "unknown",
        "torch": version("torch"),
        "fairseq": version("ve-fairseq"),
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items())


def seed_facts(root: Path, done: Collection[str]) -> dict[str, Any]:
    """What a seed's stages left behind; what has not been done yet is null.

    Args:
        root: the folder of the seed.
        done: the names of its complete stages.
    """

    def facts(stage: str, name: str) -> Any:
        path = root / name
        return read_json(path) if stage in done and path.exists() else None

    training, diverged = facts("train", "checkpoints/train.json"), root / "checkpoints" / "diverged.json"
    if training is None and diverged.exists():
        training = {"diverged": read_json(diverged)["update"]}
    tuning = facts("tune", "tuned/tune.json")
    return {
        "training": training,
        "tuned": tuning and tuning["chosen"],
        "valid": facts("score", "scores/valid/scores.json"),
        "generation": facts("generate", "hypotheses/generation.json"),
        "test": facts("score", "scores/test/scores.json"),
    }


def build_record(
    config: Config, seeds: dict[int, dict[str, Any]], speed: dict[str, Any] | None, stages: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The record of a run so far.

    Args:
        config: the merged configuration.
        seeds: of each seed, its ``seed_facts``.
        speed: what scripts/speed.py measured, if it has.
        stages: for each completed stage, when, how long and from which commit it was run.
    """
    known = [facts["training"] for facts in seeds.values() if facts["training"]]

    def of_any(key: str) -> Any:
        return next((training[key] for training in known if training.get(key) is not None), None)

    return {
        "model": config.name,
        "dataset": config.dataset,
        "config": config.merged(),
        "parameters": of_any("parameters"),
        "backend": of_any("backend"),
        "seeds": {str(seed): {**facts, "valid": numbers(facts["valid"] or {})} for seed, facts in seeds.items()},
        **summarise(config.metric, seeds),
        "speed": speed,
        "stages": stages,
        "versions": versions(),
        "git": git_state(),
        "machine": machine(),
    }
