"""Members of archives as streams: nothing is unpacked to disk, and memory does not grow with a member.

The kind of an archive is told by its name: .tar, .tgz, .tar.gz, .tbz2, .tar.bz2, .txz, .tar.xz, .zip. Any other file
holds one member, itself: ``a.txt`` holds ``a.txt``. A member whose name ends in .gz, .bz2 or .xz is read decompressed.
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
from data_prep.common.outputs import open_own

BUFFER = 1 << 20
OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_TARS = {".tar": "", ".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"} | {f".tar{suffix}": suffix for suffix in OPENERS}
_FETCH_AGAIN = "delete the archive, fetch it again, and run the same command"

# The standard library's errors for a file that is cut short, damaged or of another kind. gzip and bz2 raise OSError
# without an errno, zipfile RuntimeError for an encrypted member and NotImplementedError for an unknown compression.
_FORMATS = (lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error)
_DAMAGE = (EOFError, OSError, RuntimeError, ValueError, *_FORMATS)

_Member = tuple[str, Callable[[], Any]]  # its name, and how it is opened, before the next one is asked for


def iterate_members(
    archive: Path, wanted: Callable[[str], bool]
) -> Generator[tuple[str, io.BufferedReader], None, None]:
    """Yield the members whose name ``wanted`` accepts, in the archive's order, each decompressed by its own name.

    Names have no leading ``./`` and ``/`` as separator. Folders, links and devices are not members. What was not read
    of a stream is skipped when the next member is asked for. Only a pass to the end has tested all of the archive.

    Raises:
        UserError: the archive is missing, damaged or cut short, or a wanted member is encrypted.
    """
    with closing(_members(archive, archive.name)) as members:
        for name, opened in members:
            if wanted(name):
                with _content(archive, name, opened, _packed_suffix(name)) as stream:
                    yield name, stream


def named_members(archive: Path, names: Collection[str]) -> Generator[tuple[str, io.BufferedReader], None, None]:
    """Yield exactly these members, in the archive's order, in one pass that ends with the last of them."""
    missing = set(names)
    with closing(iterate_members(archive, missing.__contains__)) as found:
        for name, stream in found:
            missing.remove(name)
            yield name, stream
            if not missing:
                return
    if missing:
        raise UserError(
            f"{archive} has no member {' and no '.join(sorted(missing))}; see that the file is the one that the "
            "dataset's YAML means, or mend the name there"
        )


def has_checksums(name: str) -> bool:
    """Return True if a file of that name holds checksums of all its bytes, which ``check_archive`` tests."""
    return name.endswith((*OPENERS, ".tgz", ".tbz2", ".txz", ".zip"))


def check_archive(archive: Path, name: str) -> None:
    """Read an archive, or a compressed file, that is to have this name, to its end, where the checksums are."""
    for member, opened in _members(archive, name):
        with _content(archive, member, opened, _packed_suffix(name) if member == name else "") as stream:
            while stream.read(BUFFER):
                pass


def _members(archive: Path, name: str) -> Generator[_Member, None, None]:
    """Yield all members that are files; ``name`` tells the kind of the archive."""
    if not archive.is_file():
        raise UserError(f"{archive} is missing, or not a file; fetch it first")
    packing = next((packing for suffix, packing in _TARS.items() if name.endswith(suffix)), None)
    with damage_told(str(archive)), archive.open("rb") as file:
        if name.endswith(".zip"):
            for entry in (zipped := zipfile.ZipFile(file)).infolist():
                if not entry.is_dir():
                    yield entry.filename.removeprefix("./"), partial(zipped.open, entry)
        elif packing is None:
            yield name, lambda: archive.open("rb")
        else:
            yield from _tar_members(OPENERS[packing](file) if packing else file)


def _tar_members(data: Any) -> Iterator[_Member]:
    """Yield the members of a tar, in one forward pass: it has no table of contents."""
    with data, tarfile.open(fileobj=data, mode="r:") as tar:  # all its seeking goes forward
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or they pile up: there are archives of 300,000 files
            if info.isfile():
                yield info.name.removeprefix("./"), partial(tar.extractfile, info)
        while data.read(BUFFER):  # to where a compressed stream has its checksum
            pass


def _content(archive: Path, member: str, opened: Callable[[], Any], packing: str) -> io.BufferedReader:
    what = f"{archive}, member {member}" if member != archive.name else str(archive)
    with damage_told(what):
        stream = opened()
        return _told(OPENERS[packing](stream) if packing else stream, what)


def join_unpacked(paths: Iterable[Path], out: Path) -> None:
    """Join files, each decompressed by its name, an empty line after each."""
    with open_own(out, "wb") as f:
        for path in paths:
            with _content(path, path.name, partial(open, path, "rb"), _packed_suffix(path.name)) as stream:
                shutil.copyfileobj(stream, f, BUFFER)
            f.write(b"\n")


def _packed_suffix(name: str) -> str:
    """``.gz``, ``.bz2`` or ``.xz`` if the name ends so, else nothing."""
    return next((suffix for suffix in OPENERS if name.endswith(suffix)), "")


@contextmanager
def damage_told(what: str) -> Iterator[None]:
    """Turn what a library raises on bad data into a sentence about ``what``: an archive, or a member of one."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"cannot read {what}: {error.strerror}; see to its permissions and the disk") from error
        raise UserError(
            f"{what} is damaged or cut short ({str(error) or type(error).__name__}); {_FETCH_AGAIN}"
        ) from error


def _told(stream: IO[bytes], what: str) -> io.BufferedReader:
    """``stream``, buffered; damage in it raises a UserError that names ``what``. A reader's own errors stay its own."""

    class Told(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            with damage_told(what):
                block = stream.read(len(buffer))
            buffer[: len(block)] = block
            return len(block)

        def close(self) -> None:
            stream.close()
            super().close()

    return io.BufferedReader(Told(), BUFFER)
