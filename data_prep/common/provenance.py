"""The commit, the versions and the machine that a result was made with, for the records that figures rest on."""

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

FAIRSEQ = ("ve-fairseq", "fairseq-fixed", "fairseq")  # the names it may be installed under
PACKAGES = ("torch", *FAIRSEQ, "numpy", "sacrebleu", "sacremoses", "subword-nmt", "rouge-score")


def git_state() -> dict[str, Any] | None:
    """The checkout's commit, and whether anything has changed since; None where there is no git."""

    def git(*arguments: str) -> str:
        # whoever owns it: its code is being run
        command = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), *arguments]
        return os.fsdecode(subprocess.run(command, capture_output=True, check=True).stdout).strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != CHECKOUT:
            return None  # a copy without history that happens to lie in somebody else's checkout
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that take part."""
    found = package_versions(PACKAGES).items()
    return {"python": platform.python_version(), **{name: one for name, one in found if one or name not in FAIRSEQ}}


def processor() -> str:
    """The processor's name, from Linux's own list where there is one."""
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    return platform.processor() or platform.machine()


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """The processor, how many cores this process may use, and the GPUs, without importing torch."""
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, encoding="utf-8", errors="replace", check=False)
        gpus = answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []
    return {"cpu": processor(), "cores": available_cores(), "gpus": gpus}


def signature(model: str, dataset: str, settings: dict[str, Any]) -> str:
    """Describe what a score was measured with, beside its own definition: ``settings``, then the versions."""
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
    """The version of each package, by the name it is installed under; None of one that is not installed."""
    found: dict[str, str | None] = dict.fromkeys(packages)
    for package in found:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
