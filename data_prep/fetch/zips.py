"""The members of a zip, in the order of their data."""

import stat
import zipfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

from data_prep.fetch.member import Member, open_content, plain_name
from data_prep.fetch.packed import damage_told


def zip_members(archive: Path) -> Generator[Member, None, None]:
    """Every member that is not a folder. zipfile tests each one's checksum when it is read to its end."""
    with damage_told(str(archive)):
        file = zipfile.ZipFile(archive)
    with file:
        for info in sorted(file.infolist(), key=lambda info: info.header_offset):
            name = plain_name(info.filename.replace("\\", "/"))  # as some programs on Windows write it
            if not name.endswith("/"):
                kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the zip was not made on Unix
                odd = None if kind in (0, stat.S_IFREG) else "a link or a device"
                yield Member(name, partial(open_content, archive, name, odd, partial(file.open, info)))
