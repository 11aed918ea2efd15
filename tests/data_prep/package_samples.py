"""Write Debian packages and gettext catalogues in the formats of dpkg-deb and msgfmt."""

import gzip
import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import zstandard


def catalogue(messages: Mapping[str, str], *, order: str = "<", charset: str = "UTF-8") -> bytes:
    header = f"Project-Id-Version: x\nContent-Type: text/plain; charset={charset}\n"
    entries = sorted((key.encode(charset), value.encode(charset)) for key, value in {"": header, **messages}.items())
    start = 28 + 16 * len(entries)
    tables, strings = b"", b""
    for side in zip(*entries, strict=True):
        for text in side:
            tables += struct.pack(f"{order}2I", len(text), start + len(strings))
            strings += text + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, start)
    return head + tables + strings


def archive(files: Mapping[str, bytes], *, compression: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{'' if compression == 'zst' else compression}") as tar:  # type: ignore[call-overload]
        link = tarfile.TarInfo("./usr/share/man/man1/link.1.gz")
        link.type, link.linkname = tarfile.SYMTYPE, "nowhere.1.gz"
        tar.addfile(link)
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return zstandard.compress(file.getvalue()) if compression == "zst" else file.getvalue()


def package(
    folder: Path, name: str, files: Mapping[str, bytes], *, source: str | None = None, compression: str = "xz"
) -> Path:
    """Write a .deb; files whose names end in .gz are compressed, unless they are already."""
    control = f"Package: {name}\n" + (f"Source: {source}\n" if source else "") + "Version: 1.0-1\nArchitecture: all\n"
    packed = {
        path: gzip.compress(data) if path.endswith(".gz") and data[:2] != b"\x1f\x8b" else data
        for path, data in files.items()
    }
    members = {
        "debian-binary": b"2.0\n",
        f"control.tar.{compression}": archive({"control": control.encode()}, compression=compression),
        f"data.tar.{compression}": archive(packed, compression=compression),
    }
    written = b"!<arch>\n"
    for member, data in members.items():
        written += (
            f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    path = folder / f"{name}_1.0-1_all.deb"
    path.write_bytes(written)
    return path
