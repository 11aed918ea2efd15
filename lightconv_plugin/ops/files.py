"""Files that are under their names only when they are whole and on the disk. Imports nothing but Python's library."""

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the name ``path`` when the block ends, in place of what bore it.

    Until then it is ``.NAME.<random>.partial`` beside it, which a killed process leaves.

    Raises:
        OSError: it cannot be written; the message names ``path``, which is as it was.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.filename in (None, str(partial)):  # None: of a write
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder to be filled, which takes the name ``path`` when the block ends; nothing may bear it.

    Until then it lies in ``.NAME.<random>.partial`` beside it, which a killed process leaves.

    Raises:
        OSError: it cannot be written, or something has the name; the message names ``path``.
    """
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


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not on every file system
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
