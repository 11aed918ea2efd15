"""Write files that get their names only when they are complete and on the disk. Imports Python's library alone."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the name ``path`` when the block ends, in place of what bore it.

    Until then it has no name, so that a killed process leaves nothing of it. A file system that cannot name such a file
    later gets a copy, made in a folder ``.NAME.<random>.partial`` beside it: a process killed in the middle of that
    leaves the folder, and never half a file under the name.

    Raises:
        OSError: it cannot be written; the message names ``path``, which is as it was.
    """
    try:
        with _nameless(path.parent) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not _link(file, path):  # the name is taken, most likely: a link never replaces
                _replace(file, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.filename is None:  # of a write
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder to be filled, which takes the name ``path`` when the block ends; nothing may bear it.

    The folders above it are made where they are missing.

    Until then it lies in ``.NAME.<random>.partial`` beside it, which a killed process leaves.

    Raises:
        OSError: it cannot be written, or something has the name; the message names ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", suffix=".partial") as scratch:
        folder = Path(scratch) / path.name
        folder.mkdir()
        yield folder
        for file in folder.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        if os.path.lexists(path):  # os.rename would replace an empty folder
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.rename(folder, path)
    _sync_folder(path.parent)


def _nameless(folder: Path) -> IO[bytes]:
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
    except (AttributeError, OSError):  # not on this system, or not on this file system
        return tempfile.TemporaryFile(dir=folder)


def _link(file: IO[bytes], path: Path) -> bool:
    """Give a file without a name the name ``path``; False where that cannot be done."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError:
        return False
    try:
        # with a folder given, os.link follows the link in /proc to the file itself
        os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=folder)
    except (OSError, NotImplementedError):
        return False
    finally:
        os.close(folder)
    return True


def _replace(file: IO[bytes], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", suffix=".partial") as folder:
        partial = Path(folder) / path.name
        if not _link(file, partial):
            file.seek(0)
            with open(partial, "xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
        os.replace(partial, path)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not on every file system
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
