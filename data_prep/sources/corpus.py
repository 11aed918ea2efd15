"""What every kind of source shares: what it hands over, and how files that people supply are copied."""

import bz2
import gzip
import lzma
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from scripts.common.errors import UserError

Pair = tuple[str, str]

OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {
    "": lambda path: path.open("rb"),
    ".gz": lambda path: gzip.open(path),
    ".bz2": lambda path: bz2.open(path),
    ".xz": lambda path: lzma.open(path),
}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Pairs as the source has them, uncleaned."""

    parts: dict[str, list[Pair]]
    """Either ``all``, still to be split, or ``train``, ``valid`` and ``test``."""
    report: dict[str, Any]
    """What was found on the way, for counts.json."""


def copy_plain(path: Path, to: IO[bytes]) -> None:
    """Copy a file, decompressed."""
    suffix = path.suffix if path.suffix in OPENERS else ""
    try:
        with OPENERS[suffix](path) as f:
            shutil.copyfileobj(f, to)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} is damaged or cut short ({error}); copy it again") from error
    except OSError as error:
        if error.filename is None and suffix == ".bz2":  # bz2 reports damage so; a full disk has an errno
            if error.errno is None:
                raise UserError(f"{path} is damaged or cut short ({error}); copy it again") from error
        if error.filename is not None:
            raise UserError(f"cannot read {path}: {error.strerror}; give a folder of readable files") from error
        raise


def require_folder(raw: Path) -> None:
    """Refuse a path that is not a folder."""
    if not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")
