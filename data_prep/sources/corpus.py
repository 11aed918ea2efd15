"""Helpers that kinds of sources share: folders of files that people supply."""

import shutil
from pathlib import Path
from typing import IO

from data_prep.fetch.packed import BUFFER, OPENERS, open_unpacked
from scripts.common.errors import UserError

SUFFIXES = ("", *OPENERS)


def copy_plain(path: Path, to: IO[bytes]) -> None:
    """Copy a file, decompressed."""
    with open_unpacked(path) as stream:
        shutil.copyfileobj(stream, to, BUFFER)


def require_folder(raw: Path) -> None:
    """Refuse a path that is not a folder."""
    if not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")


def listing(folder: Path) -> dict[str, list[int]]:
    """The files of a folder with size and time: to read gigabytes anew at every start would take minutes.

    Their content is checked where they are fetched or taken.
    """
    require_folder(folder)
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
