"""Stamps: a file in a stage's folder that says from what the folder was made, and that it is complete.

A stage is done when its stamp bears the fingerprint of what it would be made from now. The stamp is written last and
taken away before a stage runs, so a folder whose making was cut short never has one. Each stamp has an id of its own,
which the next stage's fingerprint takes in: a stage that ran again makes all that come after it run again.
"""

import hashlib
import json
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import digest, write_json

NAME = "stamp.json"


@dataclass(frozen=True)
class Stamp:
    """The record that a completed stage leaves behind."""

    id: str
    fingerprint: str
    given: str | None  # fingerprint of files the user gave from outside, if any
    seconds: float
    finished: str
    git: dict[str, Any] | None
    files: dict[str, int]  # what the stage wrote, with sizes


def fingerprint(content: Any) -> str:
    """A digest of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def fingerprint_files(folder: Path, names: Collection[str] = ()) -> str:
    """A digest of the names and the content of the files in a folder: of ``names``, or of all where none are given."""
    paths = _files(folder)
    if not paths:
        raise UserError(f"{folder} is not a folder with files in it; give --raw the folder that holds the raw text")
    return fingerprint({name: digest([path]) for name, path in paths.items() if not names or name in names})


def digest_data(data: Path) -> str:
    """A fingerprint of a binarised folder: dictionaries and indices in full, the data files by name and size."""
    total = hashlib.sha256()
    for path in sorted(data.iterdir()):
        if path.suffix == ".bin":
            total.update(f"{path.name} {path.stat().st_size}\n".encode())
        elif path.suffix == ".idx" or path.name.startswith("dict."):
            total.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def new_id() -> str:
    """An id that no other run of a stage has."""
    return uuid.uuid4().hex


def sizes(folder: Path) -> dict[str, int]:
    """The files of a folder with their sizes, the stamp itself left out."""
    return {name: path.stat().st_size for name, path in _files(folder).items() if name != NAME}


def _files(folder: Path) -> dict[str, Path]:
    """The files of a folder, also in folders in it, by their names there; the marks of ownership left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path for path in paths}


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp of a stage's folder; None if it has none or one that cannot be read, which is as good as none."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return Stamp(**{each.name: content[each.name] for each in fields(Stamp)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_stamp(folder: Path, stamp: Stamp) -> None:
    """Declare a stage's folder complete."""
    write_json(folder / NAME, asdict(stamp))


def missing_files(folder: Path, stamp: Stamp) -> list[str]:
    """Return which of the files that the stage wrote are gone or have another size by now."""
    now = sizes(folder)
    return [name for name, size in stamp.files.items() if now.get(name) != size]
