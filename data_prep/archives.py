"""Read the members of archives as streams: nothing is unpacked to disk, and memory does not grow with a member.

The name of a file decides its kind: .tar, .tgz, .tar.gz, .tbz2, .tar.bz2, .txz, .tar.xz, .zip. Any other file counts as
an archive with one member, itself: ``a.txt`` holds ``a.txt``. A member whose name ends in .gz, .bz2 or .xz is read
decompressed.
"""

import bz2
import gzip
import io
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from data_prep.common.errors import UserError
from data_prep.common.files import open_counted
from data_prep.common.outputs import open_own
from data_prep.common.progress import Advance, ignore_progress, progress

BUFFER = 1 << 20
OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_TARS = {".tar": "", ".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"} | {f".tar{suffix}": suffix for suffix in OPENERS}
_FETCH_AGAIN = "delete the archive, fetch it again, and run the same command"

# The standard library's errors for a file that is cut short, damaged or of another kind. gzip and bz2 raise an OSError
# without errno; zipfile raises a RuntimeError for an encrypted member, a NotImplementedError for unknown compression.
_FORMATS = (lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error)
_DAMAGE = (EOFError, OSError, RuntimeError, ValueError, *_FORMATS)

_Member = tuple[str, Callable[[], Any]]
"""A member's name, and the function that opens it; to be called before the next member is read."""


def iterate_members(
    archive: Path, accepts: Callable[[str], bool], advance: Advance = ignore_progress
) -> Generator[tuple[str, io.BufferedReader], None, None]:
    """Yield the name and the decompressed content of members, in the archive's order.

    Names use ``/`` as separator and have no leading ``./``. Folders, links and devices are left out. Before the next
    member, the rest of a content that was not read is skipped. Damage is detected up to the last member that was read.

    Args:
        archive: the path of the archive.
        accepts: returns True for the names of the members to yield.
        advance: is called with the number of bytes of every read from the archive.

    Raises:
        UserError: the archive is missing, damaged or cut short, or a member to be read is encrypted.
    """
    with closing(_members(archive, archive.name, advance)) as members:
        for name, open_member in members:
            if accepts(name):
                with _content(archive, name, open_member, _packed_suffix(name)) as stream:
                    yield name, stream


def named_members(
    archive: Path, names: Collection[str], advance: Advance = ignore_progress
) -> Generator[tuple[str, io.BufferedReader], None, None]:
    """Yield the members of these names like ``iterate_members``; stop after the last of them.

    Raises:
        UserError: a member is missing, or as for ``iterate_members``.
    """
    missing = set(names)
    with closing(iterate_members(archive, missing.__contains__, advance)) as members:
        for name, stream in members:
            missing.remove(name)
            yield name, stream
            if not missing:
                return
    if missing:
        raise UserError(
            f"{archive} has no member {' and no '.join(sorted(missing))}; check that it is the file that the dataset's "
            "YAML describes, or correct the name there"
        )


def has_checksums(name: str) -> bool:
    """Return True if files of that name contain checksums of all their bytes, which ``check_archive`` tests."""
    return name.endswith((*OPENERS, ".tgz", ".tbz2", ".txz", ".zip"))


def check_archive(archive: Path, name: str) -> None:
    """Test the checksums in an archive or a compressed file by reading all of it, and show the progress.

    Args:
        archive: the file, which may have a temporary name.
        name: its final name.

    Raises:
        UserError: it is damaged or cut short.
    """
    with progress(f"testing {name}", archive.stat().st_size, "B") as advance:
        for member, open_member in _members(archive, name, advance):
            with _content(archive, member, open_member, _packed_suffix(name) if member == name else "") as stream:
                while stream.read(BUFFER):
                    pass


def _members(archive: Path, name: str, advance: Advance) -> Generator[_Member, None, None]:
    """Yield all members that are files; ``name`` decides the kind of the archive."""
    if not archive.is_file():
        raise UserError(f"{archive} is missing, or not a file; fetch it first")
    packing = next((packing for suffix, packing in _TARS.items() if name.endswith(suffix)), None)
    with damage_as_user_error(str(archive)), open_counted(archive, advance) as file:
        if name.endswith(".zip"):
            for entry in (zipped := zipfile.ZipFile(file)).infolist():
                if not entry.is_dir():
                    yield entry.filename.removeprefix("./"), partial(zipped.open, entry)
        elif packing is None:
            yield name, lambda: open_counted(archive, advance)
        else:
            yield from _tar_members(OPENERS[packing](file) if packing else file)


def _tar_members(data: Any) -> Iterator[_Member]:
    """Yield the members of a tar in one pass: it has no table of contents."""
    with data, tarfile.open(fileobj=data, mode="r:") as tar:  # in this mode it only seeks forward
        while (info := tar.next()) is not None:
            # tarfile would keep them all in memory: there are archives of 300,000 files
            tar.members.clear()  # type: ignore[attr-defined]
            if info.isfile():
                yield info.name.removeprefix("./"), partial(tar.extractfile, info)
        while data.read(BUFFER):  # the checksum of a compressed stream is at its end
            pass


def _content(archive: Path, member: str, open_member: Callable[[], Any], packing: str) -> io.BufferedReader:
    place = f"{archive}, member {member}" if member != archive.name else str(archive)
    with damage_as_user_error(place):
        stream = open_member()
        return io.BufferedReader(_Content(OPENERS[packing](stream) if packing else stream, place), BUFFER)


def join_unpacked(paths: Iterable[Path], out: Path) -> None:
    """Write the decompressed contents of files to ``out``, with an empty line after each."""
    with open_own(out, "wb") as f:
        for path in paths:
            with _content(path, path.name, partial(open, path, "rb"), _packed_suffix(path.name)) as stream:
                shutil.copyfileobj(stream, f, BUFFER)
            f.write(b"\n")


def _packed_suffix(name: str) -> str:
    """Return the ``.gz``, ``.bz2`` or ``.xz`` at the end of a name, or nothing."""
    return next((suffix for suffix in OPENERS if name.endswith(suffix)), "")


@contextmanager
def damage_as_user_error(place: str) -> Iterator[None]:
    """Turn a library's error about damaged data into a UserError about ``place``: an archive, or a member of one."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"cannot read {place}: {error.strerror}; check its permissions and the disk") from error
        raise UserError(
            f"{place} is damaged or cut short ({str(error) or type(error).__name__}); {_FETCH_AGAIN}"
        ) from error


class _Content(io.RawIOBase):
    """A stream whose damage raises a UserError about ``place``. Errors of the code that reads it stay as they are."""

    def __init__(self, stream: IO[bytes], place: str) -> None:
        self._stream, self._place = stream, place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with damage_as_user_error(self._place):
            block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._stream.close()
        super().close()
