"""Write files and folders that get their names when they are complete and on the disk. Imports Python's library alone.

Until then they are ``.NAME.lightconv`` beside their place. A killed process leaves that; the next overwrites it.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the name ``path`` when the block ends, in place of what bore it.

    Raises:
        OSError: it cannot be written; the message names ``path``, which is as it was.
    """
    partial = _in_the_making(path)
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder to be filled, which takes the name ``path`` when the block ends; nothing may bear it.

    The folders above it are made where they are missing.

    Raises:
        OSError: it cannot be written, or something has the name; the message names ``path``.
    """
    if os.path.lexists(path):  # os.rename would replace an empty folder
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    partial = _in_the_making(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _sync_folder(path.parent)


def _in_the_making(path: Path) -> Path:
    """The name is as ``data_prep.common.outputs`` has it, so that its rule of foreign files knows it."""
    return path.with_name(f".{path.name}.lightconv")


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not on every file system
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
