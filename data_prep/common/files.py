"""Reading text that people supply, and text and JSON of this project."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file

POINTER = b"version https://git-lfs.github.com/spec/"
"""The first bytes of what Git leaves in place of a large file, until Git LFS fetches it."""


def check_path(path: Path) -> None:
    """Refuse a path in which fairseq would see two."""
    if os.pathsep in str(path.resolve()):
        raise UserError(f"fairseq takes the `{os.pathsep}` in {path.resolve()} for two paths; rename the folder")


def copy_file(source: Path, path: Path) -> None:
    """Copy a file, whole or not at all."""
    with open(source, "rb") as given, atomic_file(path, "wb") as f:
        shutil.copyfileobj(given, f, 1 << 20)


@contextmanager
def _supplied(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as f:
            yield f
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing text file") from error


def stands_for(path: Path, name: str | None = None) -> str | None:
    """Return what lies under a file's name in place of the file, and what to do; None if it is the file.

    ``name`` is the one that it is to have, if not yet its own.
    """
    with _supplied(path) as f:
        head = f.read(512)
    if head.startswith(POINTER):
        return "a pointer of Git LFS in place of the file: run `git lfs pull` in the repository that it is from"
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")) and Path(name or path).suffix not in (
        ".html",
        ".htm",
    ):
        return "a web page in place of the file: fetch the file again, or by hand"
    return None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, parted at LF only, so that two sides of a corpus never drift apart."""
    try:
        with _supplied(path) as f:
            text = f.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {error.object.count(10, 0, error.start) + 1}: byte 0x{error.object[error.start]:02x} is not "
            "UTF-8; convert the file first, for example with iconv -t UTF-8"
        ) from error
    return text.removesuffix("\n").split("\n") if text else []


def count_lines(path: Path) -> int:
    """Return how many lines a file has, in memory that does not grow with it."""
    with _supplied(path) as f:
        return sum(block.count(b"\n") for block in iter(lambda: f.read(1 << 20), b""))


def digest(paths: Iterable[Path], kind: str = "sha256") -> str:
    """The SHA-256, or another digest, of files as if they were one: what sha256sum says of them one after the other."""
    total = hashlib.new(kind)
    for path in paths:
        with open(path, "rb") as f:
            hashlib.file_digest(f, lambda: total)
    return total.hexdigest()


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines as UTF-8 with LF, atomically; returns how many."""
    count = 0
    with atomic_file(path) as f:
        for line in lines:
            f.write(line + "\n")
            count += 1
    return count


def read_json(path: Path, missing: Any = None) -> Any:
    """The content of a JSON file that a command of this project wrote; ``missing``, if given, where there is none."""
    if missing is not None and not path.exists():
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; run the stage that writes it first") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); delete it and run the stage that writes it again") from error


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, atomically, in the order of its keys, readable by people."""
    with atomic_file(path) as f:
        json.dump(content, f, indent=2, ensure_ascii=False, allow_nan=False)
        f.write("\n")
