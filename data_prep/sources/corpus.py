"""What kinds of sources share: how files that people supply are copied."""

import bz2
import gzip
import lzma
import shutil
import zlib
from pathlib import Path
from typing import IO, Any

from scripts.common.errors import UserError

Pair = tuple[str, str]

SUFFIXES = ("", ".gz", ".bz2", ".xz")


def copy_plain(path: Path, to: IO[bytes]) -> None:
    """Copy a file, decompressed."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    try:
        with openers.get(path.suffix, open)(path, "rb") as f:
            shutil.copyfileobj(f, to)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        # what the decompressors raise has no errno; a full disk has one, but no file name
        if isinstance(error, OSError) and error.errno is not None:
            if error.filename is None:
                raise
            raise UserError(f"cannot read {path}: {error.strerror}; give a folder of readable files") from error
        raise UserError(f"{path} is damaged or cut short ({error}); copy it again") from error


def require_folder(raw: Path) -> None:
    """Refuse a path that is not a folder."""
    if not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")
