"""A file that a dataset needs, and what tells whether a file is the one."""

import hashlib
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.fetch.tars import tar_packing
from scripts.common.errors import UserError

HEAD = 512  # bytes that tell a file's kind: a tar's header is the longest

_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\x00", ".zip": b"PK"}


@dataclass(frozen=True)
class RemoteFile:
    """A file by its name, where it is to be had and what is published about it."""

    name: str
    """Its name here, whose ending says what kind of file it is."""
    urls: tuple[str, ...]
    """http, https, ftp or file addresses of the same file, the preferred one first. None: it comes by hand alone."""
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    by_hand: str | None = None
    """What a person needs to know to get the file: a page, a registration, a licence."""

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


class Digest:
    """Length and checksums of a file, as its bytes go by; MD5 only of a file for which it is published."""

    def __init__(self, file: RemoteFile) -> None:
        self.bytes = 0
        self._sha256 = hashlib.sha256()
        self._md5 = None if file.md5 is None else hashlib.md5(usedforsecurity=False)

    def update(self, block: bytes | memoryview) -> None:
        self.bytes += len(block)
        self._sha256.update(block)
        if self._md5 is not None:
            self._md5.update(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> str | None:
        return None if self._md5 is None else self._md5.hexdigest()


def difference(file: RemoteFile, digest: Digest, noted: dict[str, Any] | None) -> str | None:
    """Return what is wrong with a file of this digest: what was got and what was expected; None if nothing is.

    ``noted`` is what the ledger has from an earlier time; it counts where no checksum is published.
    """
    if file.bytes is not None and digest.bytes != file.bytes:
        return f"it has {digest.bytes:,} bytes, {file.bytes:,} were expected"
    if file.sha256 is not None and digest.sha256 != file.sha256:
        return f"its SHA-256 is {digest.sha256}, {file.sha256} was expected"
    if file.md5 is not None and digest.md5 != file.md5:
        return f"its MD5 is {digest.md5}, {file.md5} was expected"
    if not file.published and noted is not None and digest.sha256 != noted["sha256"]:
        return (
            f"its SHA-256 is {digest.sha256} ({digest.bytes:,} bytes); the file of this name that came on "
            f"{noted['date']} from {noted['url']} had {noted['sha256']} ({noted['bytes']:,} bytes)"
        )
    return None


def other_kind(name: str, head: bytes) -> str | None:
    """Return what a file is that begins with ``head`` and is not of the kind that its name says; None if it may be.

    ``head`` has the first HEAD bytes of the file, or all of them.
    """
    if not name.endswith((".html", ".htm")) and head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        title = re.search(rb"<title[^>]*>\s*([^<]{1,200})", head, re.IGNORECASE)
        return "a web page" + (f' ("{" ".join(title[1].decode("utf-8", "replace").split())}")' if title else "")
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
