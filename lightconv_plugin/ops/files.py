"""Write files and folders that get their final names when they are complete and on the disk.

Until then they are named ``.NAME.lightconv``, in the same folder. If a process is killed, its incomplete file or folder
stays, and the next process that writes the same path replaces it. This module imports no third-party code.
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
    """Open a file for writing that gets the name ``path`` when the block ends, replacing a file of that name.

    Raises:
        OSError: the file cannot be written. The message names ``path``, which is unchanged.
    """
    partial = _in_the_making(path)
    # if the file cannot be opened, a file of that name is not ours to remove
    with _errors_name(path, partial), open(partial, "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(partial), os.fstat(file.fileno())):  # otherwise it is another process's
                    partial.unlink()
            raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a temporary folder, which gets the name ``path`` when the block ends. Make its parents if needed.

    Raises:
        OSError: the folder cannot be written, or ``path`` exists. The message names ``path``.
    """
    if os.path.lexists(path):  # os.rename would silently replace an empty folder
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    partial = _in_the_making(path)
    with _errors_name(path, partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        made = os.stat(partial)
    try:
        yield partial
        with _errors_name(path, partial):
            for file in partial.iterdir():
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
            os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(partial), made):  # otherwise it is another process's
                shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def _in_the_making(path: Path) -> Path:
    """Return the temporary path of an incomplete file. ``data_prep.common.outputs`` recognises files by this name."""
    return path.with_name(f".{path.name}.lightconv")


@contextlib.contextmanager
def _errors_name(path: Path, partial: Path) -> Iterator[None]:
    """Raise an OSError about ``partial``, or about no file, as one about ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(partial)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
