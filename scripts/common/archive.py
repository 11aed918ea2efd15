"""Look through an archive from elsewhere before it is unpacked: a small one can hold what fills disk or memory."""

import gzip
import posixpath
import shutil
import tarfile
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError

MOST_BYTES = 20_000_000_000
"""The published models have fewer than 300 million parameters: 3.6 GB each with an optimiser's state."""

MOST_MEMBERS = 1_000
"""A checkpoint, dictionaries and codes are ten files."""

_MOST_HEADERS = 1 << 24  # bytes: a header may say that it has gigabytes, which tarfile would read at once


def check_size(archive: Path, folder: Path) -> int:
    """Return how many bytes a .tar.gz holds, by its headers; nothing is written.

    Links count as what they lead to: where a file system has no hard links, copies are made. Files with holes count
    whole.

    Raises:
        UserError: it holds too many bytes or files, or more than there is room for in the file system of ``folder``.
    """
    sizes: dict[str, int] = {}
    total = 0
    with gzip.open(archive) as stream, _open_tar(_Headers(stream, archive)) as tar:
        for count, member in enumerate(tar, 1):
            size = sizes.get(posixpath.normpath(member.linkname), 0) if member.islnk() else member.size
            if size < 0:
                raise UserError(f"{archive} is refused: {member.name} has {size:,} bytes by its header")
            sizes[posixpath.normpath(member.name)] = size
            total += size
            if total > MOST_BYTES or count > MOST_MEMBERS:
                raise UserError(
                    f"{archive} is refused: it would unpack to more than {MOST_BYTES:,} bytes or {MOST_MEMBERS:,} "
                    "files, and no published model is near that; fetch it again from where it was published"
                )
    free = shutil.disk_usage(folder).free
    if total > free:
        raise UserError(f"{archive} unpacks to {total:,} bytes, and {folder} has room for {free:,}; make room")
    return total


def _open_tar(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r:")


class _Headers:
    """A stream of which tarfile reads headers alone, and seeks over the rest."""

    def __init__(self, stream: Any, archive: Path) -> None:
        self._stream, self._archive = stream, archive
        self._left = _MOST_HEADERS
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._left:
            raise UserError(
                f"{self._archive} is refused: its headers have more than {_MOST_HEADERS:,} bytes; fetch it again from "
                "where it was published"
            )
        self._left -= size
        return bytes(self._stream.read(size))
