"""A file to fetch, and how the tests do it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from data_prep.fetch import Patience, RemoteFile, fetch
from scripts.common import scratch

CONTENT = bytes(n * n % 251 for n in range(5000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = Patience(attempts=3, timeout=0.3, first_delay=0.01)


def get(folder: Path, *urls: str, raw: Path | None = None, patience: Patience = QUICK, **more: Any) -> Path:
    """Fetch a.txt, whatever it holds."""
    file = RemoteFile(more.pop("name", "a.txt"), urls, **more)
    return fetch(file, folder / "out", raw=raw, ledger=folder / "ledger.json", patience=patience)


def part(folder: Path, name: str = "a.txt") -> Path:
    """The bytes of an unfinished download; where there are none, the name that they could have."""
    return scratch.work_path(folder / name)


def notes(folder: Path, name: str = "a.txt") -> Path:
    """The notes of an unfinished download, likewise."""
    return scratch.work_path(folder / f"{name}.from.json")


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir() if not path.name.startswith("."))


def entry(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "ledger.json").read_text())["a.txt"]
