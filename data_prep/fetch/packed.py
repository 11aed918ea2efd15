"""Compressed streams by name, and streams whose damage is told in a sentence."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from scripts.common.errors import UserError

BUFFER = 1 << 20

OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}

# What the standard library raises on a file that is cut short, damaged or made by something else. OSError stands here
# because gzip and bz2 raise it for bad data, without an errno.
_DAMAGE = (
    EOFError,
    OSError,
    RuntimeError,  # zipfile: an encrypted member; NotImplementedError: an unknown compression
    ValueError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def packed_suffix(name: str) -> str:
    """``.gz``, ``.bz2`` or ``.xz`` if the name ends so, else nothing."""
    return next((suffix for suffix in OPENERS if name.endswith(suffix)), "")


_FETCH_AGAIN = "delete the archive, fetch it again, and run the same command"


@contextmanager
def damage_told(what: str, remedy: str = _FETCH_AGAIN) -> Iterator[None]:
    """Turn what a library raises on bad data into a sentence about ``what``: an archive, or a member of one."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(
                f"cannot read {what}: {error.strerror}; see to the file's permissions and the disk"
            ) from error
        raise UserError(f"{what} is damaged or cut short ({str(error) or type(error).__name__}); {remedy}") from error


class _Told(io.RawIOBase):
    """A stream that says of what it is a part when reading fails, so that a reader's own errors stay its own."""

    def __init__(self, stream: IO[bytes], what: str, remedy: str) -> None:
        self._stream, self._what, self._remedy = stream, what, remedy

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with damage_told(self._what, self._remedy):
            block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def told(stream: IO[bytes], what: str, remedy: str = _FETCH_AGAIN) -> BinaryIO:
    """``stream``, buffered; damage in it raises a UserError that names ``what``."""
    return cast(BinaryIO, io.BufferedReader(_Told(stream, what, remedy), BUFFER))


def unpacked(stream: IO[bytes], name: str) -> IO[bytes]:
    """``stream`` decompressed if ``name`` says that it is compressed."""
    suffix = packed_suffix(name)
    return cast(IO[bytes], OPENERS[suffix](stream)) if suffix else stream


@contextmanager
def open_unpacked(path: Path, name: str | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed by its name, or by the ``name`` that it is to have.

    Raises:
        UserError: on opening or while reading: it is missing, damaged or cut short.
    """
    with damage_told(str(path)):
        file = path.open("rb")
    with file, told(unpacked(file, name or path.name), str(path)) as stream:
        yield stream
