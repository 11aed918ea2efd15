"""Reading text that people supply, and writing files and folders that exist whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scripts.common.errors import UserError


@contextmanager
def atomic_file(path: Path, mode: str = "w") -> Iterator[IO]:
    """Open a neighbour of ``path`` for writing; it takes the name ``path`` only if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial{os.getpid()}")
    try:
        with open(partial, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(*folders: Path) -> None:
    """Remove what ``atomic_file`` left in folders, if they exist, when its process was killed.

    The caller holds the lock that keeps others from writing there.
    """
    for folder in folders:
        for path in folder.glob("*.partial*"):
            if path.suffix.removeprefix(".partial").isdecimal():
                path.unlink()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty neighbour of ``path`` to fill; it replaces ``path`` only if the block ends without an error.

    An older ``path`` stays in place until the new one is complete, and is not touched when the block fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    old = path.with_name(f"{path.name}.old")
    if old.exists() and not path.exists():  # killed between the two renames below: the older result is the good one
        os.replace(old, path)
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if path.exists():
        os.replace(path, old)
    os.replace(partial, path)
    shutil.rmtree(old, ignore_errors=True)


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, parted at LF only, so that two sides of a corpus never drift apart.

    Raises:
        UserError: the file is missing, unreadable or holds bytes that are not UTF-8 (with the line's number).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing text file") from error
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    text = []
    for number, line in enumerate(lines, 1):
        try:
            text.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: byte 0x{line[error.start]:02x} is not UTF-8; "
                "convert the file first, for example with iconv -t UTF-8"
            ) from error
    return text


def count_lines(path: Path) -> int:
    """How many lines a file has, in memory that does not grow with it.

    Raises:
        UserError: the file is missing or unreadable.
    """
    try:
        with open(path, "rb") as f:
            return sum(block.count(b"\n") for block in iter(lambda: f.read(1 << 20), b""))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing text file") from error


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines as UTF-8 with LF, atomically; returns how many."""
    count = 0
    with atomic_file(path) as f:
        for line in lines:
            f.write(line + "\n")
            count += 1
    return count


def read_json(path: Path) -> Any:
    """The content of a JSON file that a command of this project wrote.

    Raises:
        UserError: the file is missing, unreadable or not JSON.
    """
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
