"""Members of archives as streams, without unpacking to disk and in memory that does not grow with the archive.

The kind of an archive is told by its name: .tar, .tgz, .tar.gz, .tbz2, .tar.bz2, .txz, .tar.xz, .zip. Any other file
holds one member, itself: ``a.txt`` holds ``a.txt``, and ``a.txt.gz`` holds ``a.txt.gz``, read decompressed like every
member whose name ends in .gz, .bz2 or .xz.

A tar is read in one pass in its own order: it has no table of contents.
"""

import difflib
import stat
import zipfile
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from data_prep.fetch.packed import BUFFER, damage_told, open_unpacked, told, unpacked
from data_prep.fetch.tars import Member, tar_members, tar_packing
from scripts.common.errors import UserError

_NAMES_KEPT = 10_000  # of an archive's names, for the message about one that is missing


def iterate_members(
    archive: Path, wanted: Callable[[str], bool], *, most_bytes: int | None = None
) -> Generator[tuple[str, BinaryIO], None, None]:
    """The members whose name ``wanted`` accepts, in the archive's order, each decompressed by its own name.

    Names have no leading ``./`` and ``/`` as separator. Folders are not members. A stream is closed when the next
    member is asked for; what was not read of it is skipped. Only a pass that goes to the end has seen all of the
    archive, the checksum of its compression included.

    Raises:
        UserError: the archive is missing, damaged or cut short; a wanted member is a link, a device or encrypted,
            occurs twice, or its name leads out of the folder it would be unpacked into; the wanted ones have together
            more than ``most_bytes`` by their headers.
    """
    seen: set[str] = set()
    total = 0
    with closing(_members(archive)) as members:
        for member in members:
            if not wanted(member.name):
                continue
            if member.name in seen:
                raise UserError(f"{archive} has two members {member.name}; pack it anew with the one that is meant")
            seen.add(member.name)
            total += member.size
            if most_bytes is not None and total > most_bytes:
                raise UserError(
                    f"{archive} would unpack to {total:,} bytes or more, expected at most {most_bytes:,}, which is "
                    "far more than such files need; see where it comes from"
                )
            with _content(archive, member) as stream:
                yield member.name, stream


def named_members(archive: Path, names: Collection[str]) -> Generator[tuple[str, BinaryIO], None, None]:
    """Exactly these members, in the archive's order, in one pass that ends with the last of them.

    Of a member that occurs twice this is the first: what comes after the last of ``names`` is not looked at.
    """
    missing = set(names)
    bases = {PurePosixPath(name).name for name in names}
    there: list[str] = []

    def wanted(name: str) -> bool:
        if name not in missing and (len(there) < _NAMES_KEPT or PurePosixPath(name).name in bases):
            there.append(name)
        return name in missing

    with closing(iterate_members(archive, wanted)) as found:
        for name, stream in found:
            missing.remove(name)
            yield name, stream
            if not missing:
                return
    if missing:
        raise UserError(_not_there(archive, sorted(missing), there))


def check_archive(archive: Path, name: str | None = None) -> None:
    """Read an archive or a compressed file to its end; a file of another kind passes.

    ``name`` is the name that it is to have, if it still has another.

    Raises:
        UserError: it is damaged or cut short. In a tar without compression only headers and the length can show that.
    """
    name = name or archive.name
    packing = tar_packing(name)
    if name.endswith(".zip"):
        with damage_told(str(archive)), zipfile.ZipFile(archive) as file:
            bad = file.testzip()
        if bad is not None:
            raise UserError(f"{archive}, member {bad} is damaged; delete the archive and fetch it again")
    elif packing is not None:
        for _ in tar_members(archive, packing):
            pass
    else:
        with open_unpacked(archive, name) as stream:
            while stream.read(BUFFER):
                pass


def _members(archive: Path) -> Generator[Member, None, None]:
    """All members, folders left out, under names with ``/`` as separator and no ``./`` before them."""
    if not archive.is_file():
        raise UserError(f"{archive} is missing, or not a file; fetch it first")
    packing = tar_packing(archive.name)
    if archive.name.endswith(".zip"):
        found = _zip_members(archive)
    elif packing is not None:
        found = tar_members(archive, packing)
    else:
        yield Member(archive.name, archive.stat().st_size, lambda: archive.open("rb"))
        return
    with closing(found):
        for member in found:
            name = member.name
            while name.startswith("./"):
                name = name[2:].lstrip("/")
            yield replace(member, name=name)


def _zip_members(archive: Path) -> Generator[Member, None, None]:
    """The members in the order of their data. zipfile tests each one's checksum when it is read to its end."""
    with damage_told(str(archive)):
        file = zipfile.ZipFile(archive)
    with file:
        for info in sorted(file.infolist(), key=lambda info: info.header_offset):
            name = info.filename.replace("\\", "/")  # as some programs on Windows write it
            if not name.endswith("/"):
                kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the zip was not made on Unix
                odd = None if kind in (0, stat.S_IFREG) else "a link or a device"
                yield Member(name, info.file_size, partial(file.open, info), odd)


def _content(archive: Path, member: Member) -> BinaryIO:
    """The content of a member, decompressed by its name.

    Raises:
        UserError: the member is not to be used; or, on opening and reading, damaged.
    """
    odd = member.odd
    if member.name.startswith("/") or ".." in member.name.split("/"):
        odd = "under a name that leads out of the folder"
    if odd is not None:
        raise UserError(
            f"{archive}: member {member.name} is {odd}; no corpus needs that. See where the archive comes from, "
            "and make one with plain files"
        )
    what = f"{archive}, member {member.name}"
    with damage_told(what):
        inner = member.open()
        assert inner is not None  # tarfile opens no folders and devices, which do not come here
        return told(unpacked(inner, member.name), what)


def _not_there(archive: Path, missing: list[str], there: list[str]) -> str:
    base = PurePosixPath(missing[0]).name
    near = [name for name in there if PurePosixPath(name).name == base]
    near.extend(difflib.get_close_matches(missing[0], there[:_NAMES_KEPT], n=8, cutoff=0.3))
    shown = list(dict.fromkeys(near))[:8] or there[:8]
    listing = "".join(f"\n  {name}" for name in shown) or "\n  (nothing)"
    return (
        f"{archive} has no member {' and no '.join(missing)}; nearest to the first are:{listing}\n"
        "See that the file is the one that the dataset's YAML means, or mend the name there"
    )
