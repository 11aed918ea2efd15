"""Small archives in every form, built in the tests."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from data_prep.archives import iterate_members, named_members

TARS = {
    "a.tar": "w:",
    "a.tar.gz": "w:gz",
    "a.tgz": "w:gz",
    "a.tar.bz2": "w:bz2",
    "a.tbz2": "w:bz2",
    "a.tar.xz": "w:xz",
    "a.txz": "w:xz",
}
KINDS = [*TARS, "a.zip"]
PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}

FILES = {
    "set/train.en": b"".join(b"line %d of the text\n" % n for n in range(3000)),
    "set/empty": b"",
    "set/train.de.gz": gzip.compress(b"ein\nzwei\n") + gzip.compress(b"drei\n"),  # two members, as pigz and cat make
    "set/a.bz2": bz2.compress(b"bz2\n"),
    "set/a.xz": lzma.compress(b"xz\n"),
    "set/" + "long" * 40 + ".txt": b"long name\n",
    "set/umlaut-ä": b"name\n",
}
READ = {**FILES, "set/train.de.gz": b"ein\nzwei\ndrei\n", "set/a.bz2": b"bz2\n", "set/a.xz": b"xz\n"}


def tar_bytes(mode: str, *members: tuple[tarfile.TarInfo, bytes | None]) -> bytes:
    """A tar; ``mode`` as tarfile.open's for writing."""
    file = io.BytesIO()
    layout = tarfile.GNU_FORMAT if mode == "w:" else tarfile.PAX_FORMAT
    with tarfile.open(fileobj=file, mode=mode, format=layout) as tar:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content or b"")
            tar.addfile(info, None if content is None else io.BytesIO(content))
    return file.getvalue()


def special(name: str, kind: bytes = tarfile.REGTYPE, *, to: str = "") -> tarfile.TarInfo:
    """A header of any type."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = to
    return info


def zip_bytes(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("set/", b"")
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def build(folder: Path, kind: str, files: Mapping[str, bytes] = FILES, *, prefix: str = "") -> Path:
    """An archive of files below a folder; ``kind`` is its name, of KINDS."""
    path = folder / kind
    if kind in TARS:
        members = [(special(prefix + name), content) for name, content in files.items()]
        path.write_bytes(tar_bytes(TARS[kind], (special(prefix + "set", tarfile.DIRTYPE), None), *members))
    else:
        path.write_bytes(zip_bytes({prefix + name: content for name, content in files.items()}))
    return path


def everything(archive: Path) -> dict[str, bytes]:
    return {name: stream.read() for name, stream in iterate_members(archive, lambda name: True)}


@contextmanager
def open_member(archive: Path, member: str) -> Iterator[BinaryIO]:
    """One member for reading."""
    with closing(named_members(archive, [member])) as members:
        yield next(members)[1]


def named(value: object) -> str | None:
    """Name a case's value; archives are left out, since gzip writes the time into them."""
    return "" if isinstance(value, bytes) else None
