"""The commit, package versions and machine that a result was made with, for the records of scores and timings."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from data_prep.common import CHECKOUT

FAIRSEQ = ("ve-fairseq", "fairseq-fixed", "fairseq")  # the packages that contain it
PACKAGES = ("torch", *FAIRSEQ, "numpy", "sacrebleu", "sacremoses", "subword-nmt", "rouge-score")


def git_state() -> dict[str, Any] | None:
    """Return the checkout's ``commit``, and True under ``changed`` if a file differs from it; None without git."""

    def git(*arguments: str) -> str:
        # git refuses a checkout of another owner, for safety; but its code is running already
        command = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), *arguments]
        return os.fsdecode(subprocess.run(command, capture_output=True, check=True).stdout).strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != CHECKOUT:
            return None  # a copy without history, inside somebody else's checkout
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that results depend on; None for a missing package."""
    installed = {name: number for name, number in package_versions(PACKAGES).items() if number or name not in FAIRSEQ}
    return {"python": platform.python_version(), **installed}


def processor() -> str:
    """Return the processor's name, from /proc/cpuinfo if it exists."""
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    return platform.processor() or platform.machine()


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Return the processor, the number of cores that this process may use, and the GPUs, without importing torch."""
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, encoding="utf-8", errors="replace", check=False)
        gpus = answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []
    return {"cpu": processor(), "cores": available_cores(), "gpus": gpus}


def signature(model: str, dataset: str, settings: dict[str, Any]) -> str:
    """Return what a score depends on, as one line: model, data, ``settings``, commit and versions."""
    state = git_state()
    parts = {
        "model": model,
        "data": dataset,
        **settings,
        "commit": state["commit"][:10] + ("+changes" if state["changed"] else "") if state else "unknown",
        "torch": version("torch"),
        "fairseq": next(filter(None, package_versions(FAIRSEQ).values()), "unknown"),
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items())


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package by its name; None for one that is not installed."""
    installed: dict[str, str | None] = dict.fromkeys(packages)
    for package in installed:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed
