"""Helpers that kinds of sources share: folders of files that people supply."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from data_prep.archives import BUFFER, OPENERS, open_unpacked
from scripts.common.errors import UserError
from scripts.common.files import open_own

SUFFIXES = ("", *OPENERS)


def join_plain(paths: Iterable[Path], out: Path) -> None:
    """Join files, decompressed, an empty line after each."""
    with open_own(out, "wb") as f:
        for path in paths:
            with open_unpacked(path) as stream:
                shutil.copyfileobj(stream, f, BUFFER)
            f.write(b"\n")


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
