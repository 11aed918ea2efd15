"""Read text files that users supply, and read and write this project's own text and JSON files."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file
from data_prep.common.progress import Advance, progress

POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of the small text file that Git keeps in place of a large file until Git LFS fetches it."""
_BLOCK = 1 << 20


def check_path(path: Path) -> None:
    """Raise a UserError for a path with a colon: fairseq would take it for two paths."""
    if os.pathsep in str(path.resolve()):
        raise UserError(f"fairseq takes the `{os.pathsep}` in {path.resolve()} for two paths; rename the folder")


class _CountedFile(io.FileIO):
    def __init__(self, path: Path, advance: Advance) -> None:
        super().__init__(path, "rb")
        self._advance = advance

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._advance(count or 0)
        return count


def open_counted(path: Path, advance: Advance) -> io.BufferedReader:
    """Open a file for reading; ``advance`` is called with the number of bytes of every read from the disk."""
    return io.BufferedReader(_CountedFile(path, advance), _BLOCK)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file and show the progress; ``path`` appears when it is complete."""
    with (
        progress(f"copying {source.name}", source.stat().st_size, "B") as advance,
        open_counted(source, advance) as original,
        atomic_file(path, "wb") as copy,
    ):
        shutil.copyfileobj(original, copy, _BLOCK)


@contextmanager
def _supplied(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as f:
            yield f
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing text file") from error


def stands_for(path: Path, name: str | None = None) -> str | None:
    """Recognise a Git LFS pointer or a web page that was saved under the name of the real file.

    Args:
        path: the file.
        name: the name that the real file has, if it differs from that of ``path``.

    Returns:
        a description of the file and what to do about it; None if it is neither.
    """
    with _supplied(path) as f:
        head = f.read(512)
    if head.startswith(POINTER):
        return "a pointer of Git LFS in place of the file: run `git lfs pull` in the repository that it is from"
    is_page = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    if is_page and Path(name or path).suffix not in (".html", ".htm"):
        return "a web page in place of the file: fetch the file again, or by hand"
    return None


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file. Only LF ends a line: the two sides of a corpus stay aligned."""
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
    """Count the lines of a file without holding it in memory."""
    with _supplied(path) as f:
        return sum(block.count(b"\n") for block in iter(lambda: f.read(_BLOCK), b""))


def digest(paths: Iterable[Path], kind: str = "sha256") -> str:
    """Hash the concatenation of files, and show the progress.

    Args:
        paths: the files, in order.
        kind: the name of the hash in hashlib.

    Returns:
        the digest in hexadecimal; for one file and SHA-256 the one that sha256sum prints.
    """
    paths, total = list(paths), hashlib.new(kind)
    size = sum(path.stat().st_size for path in paths)
    with progress(f"checksum of {paths[0].name if paths else 'nothing'}", size, "B") as advance:
        for path in paths:
            with open_counted(path, advance) as f:
                hashlib.file_digest(f, lambda: total)
    return total.hexdigest()


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines as UTF-8 with LF; the file appears when it is complete. Returns the number of lines."""
    count = 0
    with atomic_file(path) as f:
        for line in lines:
            f.write(line + "\n")
            count += 1
    return count


def read_json(path: Path, missing: Any = None) -> Any:
    """Read a JSON file that a command of this project wrote.

    Args:
        path: the file.
        missing: the value to return if there is no such file; None: raise a UserError then.
    """
    if missing is not None and not path.exists():
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; run the stage that writes it first") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); delete it and run the stage that writes it again") from error


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON with its keys in order; the file appears when it is complete."""
    with atomic_file(path) as f:
        json.dump(content, f, indent=2, ensure_ascii=False, allow_nan=False)
        f.write("\n")
