"""The members of a tar, in one forward pass, with nothing left out silently.

tarfile takes a damaged header, and a file cut off between two members, for the end of the archive: the corpus would
just be shorter. Here both are errors.
"""

import tarfile
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from data_prep.fetch.packed import BUFFER, OPENERS, damage_told

_PACKING = {
    ".tar": "",
    ".tar.gz": ".gz",
    ".tgz": ".gz",
    ".tar.bz2": ".bz2",
    ".tbz2": ".bz2",
    ".tar.xz": ".xz",
    ".txz": ".xz",
}
_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LONGEST_HEADER = 1 << 24  # bytes; tarfile reads as many as the header says, into memory


@dataclass(frozen=True)
class Member:
    """A member of an archive of any kind. It must be opened and read before the next one is asked for."""

    name: str
    size: int
    open: Callable[[], IO[bytes] | None]
    odd: str | None = None  # the kind of thing that it is, if it is no plain file


def tar_packing(name: str) -> str | None:
    """Return how a tar of this name is compressed: a suffix, nothing for a plain tar, None if it is no tar."""
    return next((packing for suffix, packing in _PACKING.items() if name.endswith(suffix)), None)


def tar_members(archive: Path, packing: str) -> Generator[Member, None, None]:
    """Every member that is not a folder; what is not read of one is skipped when the next is asked for."""
    what = str(archive)
    with ExitStack() as stack:
        with damage_told(what):
            data: IO[bytes] = stack.enter_context(archive.open("rb"))
            if packing:
                data = stack.enter_context(OPENERS[packing](data))
            try:
                # "r:", not "r|": all seeking goes forward here, which the compressed streams do by reading on
                tar = stack.enter_context(tarfile.open(fileobj=data, mode="r:", tarinfo=_StrictTarInfo))
            except _NoEndMark:
                raise tarfile.ReadError("it is empty") from None
        while (info := _next(what, tar, data, packing)) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or they pile up: there are archives of 300,000 files
            if not info.isdir():
                yield Member(info.name, info.size, partial(tar.extractfile, info), _link_or_device(info))
        _see_the_end(what, data)


class _NoEndMark(Exception):
    """The file ended where a header, or the block of zeros that ends every tar, was due."""


class _StrictTarInfo(tarfile.TarInfo):
    """A header as tarfile reads it, except that a bad one is an error wherever it stands, not only at the beginning."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: Any) -> "_StrictTarInfo":
        if not buf:
            raise _NoEndMark
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the mark of the end
            raise tarfile.ReadError(f"bad header: {error}") from error
        if info.size < 0 or (info.type in _LONG_HEADERS and info.size > _LONGEST_HEADER):
            raise tarfile.ReadError(f"bad header: it says that {info.size:,} bytes follow")
        return info


def _next(what: str, tar: tarfile.TarFile, data: IO[bytes], packing: str) -> tarfile.TarInfo | None:
    with damage_told(what):
        try:
            return tar.next()
        except _NoEndMark:
            # A compressed stream has an end of its own, so that nothing is missing, unless amid a member's two headers.
            if packing and data.tell() == tar.offset:
                return None
            raise tarfile.ReadError("the blocks of zeros that end a tar are missing") from None


def _see_the_end(what: str, data: IO[bytes]) -> None:
    """Read what follows the mark of the end: the compression's own checksum stands there.

    Zeros fill the last record; old programs left their memory's rubbish in it. More than a record of anything else is
    the rest of an archive whose header was overwritten by zeros.
    """
    with damage_told(what):
        after = 0
        while block := data.read(BUFFER):
            after += len(block)
            if after > tarfile.RECORDSIZE and block.strip(b"\0"):
                raise tarfile.ReadError("more data follows the mark of its end")


def _link_or_device(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return f"a {'symbolic' if info.issym() else 'hard'} link to {info.linkname}"
    return None if info.isfile() else "a device or a pipe"
