"""A file that a dataset needs, and its kind by its first bytes."""

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from data_prep.fetch.archives import tar_packing
from data_prep.fetch.drive import title
from scripts.common.errors import UserError

HEAD = 512  # bytes that tell a file's kind: a tar's header is the longest

_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\x00", ".zip": b"PK"}


@dataclass(frozen=True)
class RemoteFile:
    """A file by its name, where it is to be had and what is published about it."""

    name: str  # its name here, whose ending says what kind of file it is
    urls: tuple[str, ...]
    """http, https, ftp or file addresses of the same file, the preferred one first. None: it comes by hand alone."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    by_hand: str | None = None
    """All that a person needs to know to get the file: a page, a registration, a licence."""

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or self.name in ("", ".", ".."):
            raise UserError(f"{self.name!r} is not the name of a file; give one without a folder")
        for kind, digits in (("sha256", 64), ("md5", 32)):
            given = getattr(self, kind)
            if given is not None and re.fullmatch(f"[0-9a-f]{{{digits}}}", given) is None:
                raise UserError(f"{self.name}: {kind} {given!r} is not {digits} digits of 0-9 and a-f; mend the YAML")

    @property
    def published(self) -> bool:
        """Return True if a checksum is published, so that bytes from anywhere can be told to be the file's."""
        return self.sha256 is not None or self.md5 is not None


def other_kind(name: str, head: bytes) -> str | None:
    """Return what a file is that begins with ``head`` and is not of the kind that its name says; None if it may be.

    ``head`` has the first HEAD bytes of the file, or all of them.
    """
    if not name.endswith((".html", ".htm")) and head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page" + (f' ("{said}")' if (said := title(head)) else "")
    packing = tar_packing(name)
    magic = _MAGIC.get(packing or Path(name).suffix)
    if packing == "":
        try:
            tarfile.TarInfo.frombuf(head[:HEAD], "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            return f"not a tar ({error})"
    elif magic is not None and not head.startswith(magic):
        return f"not what its name says: it begins with {head[:8]!r}, not with {magic!r}"
    elif magic is None and head.startswith((_MAGIC[".gz"], _MAGIC[".xz"])):
        return "compressed, which its name does not say"
    return None
