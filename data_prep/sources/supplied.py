"""Read the user's own files as lines of clean text. Their format is found out, and what is changed is counted.

A line ends at LF, or at CR LF, and nowhere else. A byte order mark at the start goes, and characters that would glue
words or break lines (``BLANK``) become spaces.
"""

import codecs
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.archives import BUFFER, OPENERS, damage_told, packed_suffix, told
from scripts.common.errors import UserError

_LONGEST = 1 << 24  # bytes of a line: a file without line ends would fill the memory

# control characters but the tab, line and paragraph separators, zero width spaces, byte order marks within text;
# joiners, marks of direction and soft hyphens stay, which scripts and emoji are written with
BLANK = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]")

EMPTY = "empty line, kept"  # the only thing in ``SuppliedText.changes`` that changes nothing

_HEAD = 1 << 14  # bytes by which a file's kind is told
_MEND = "unpack it by hand to see what is left of it, or give another copy"
_PACKED = {
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
}
_SAVE = "save it as plain text in UTF-8, one sentence a line"
_MARKED_UP = rb"(?:\xef\xbb\xbf)?\s*<(?i:\?xml|!doctype|html|tmx|xliff|mteval|srcset|refset|tstset)\b"
_OTHER_KINDS = (
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", "text in UTF-32", "iconv -f UTF-32 -t UTF-8 {file} > NEW"),
    (rb"\xff\xfe|\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 {file} > NEW"),
    (rb"%PDF-", "a PDF document", "pdftotext {file} NEW, then one sentence a line"),
    (rb"PK\x03\x04(?s:.*)(\[Content_Types\]\.xml|mimetype)", "a document of an office program", _SAVE),
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive", "unzip {file}"),
    (rb"\xd0\xcf\x11\xe0", "a document of an old office program", _SAVE),
    (rb"\{\\rtf", "a document in RTF", _SAVE),
    (_MARKED_UP, "marked up (XML, SGM, TMX or HTML)", "take the sentences out of it, one a line"),
    (rb"(?s:.{257})ustar", "a tar archive", "tar -xf {file}"),
    (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "unzstd {file}"),
    (rb"\x04\x22\x4d\x18", "compressed with lz4", "unlz4 {file}"),
    (rb"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip", "7z x {file}"),
    (rb"Rar!\x1a\x07", "a RAR archive", "unrar x {file}"),
    (rb"\x1f\x9d", "compressed with compress", "uncompress {file}"),
)


class SuppliedText:
    """A file of the user's, to be iterated over once."""

    def __init__(self, path: Path, *, invalid: str) -> None:
        self.path = path.resolve() if path.is_symlink() else path
        self.lines = 0  # lines read so far
        self.changes: dict[str, dict[str, int]] = {}
        """Counts by what was found: how many ``times``, and the number of the ``first line`` with it."""
        self.name = os.fsencode(self.path.name).decode(errors="backslashreplace")
        """The file's name as text, also where it is not UTF-8 or the locale is C."""
        self._invalid = invalid
        self._broken: tuple[int, int] | None = None  # the first line that is not UTF-8, and the byte

    def __iter__(self) -> Iterator[bytes | None]:
        """The lines without their ends, in UTF-8. None: one that is not UTF-8, to be left out with its pair."""
        with _opened(self.path) as stream:
            while line := stream.readline(_LONGEST + 1):
                self.lines += 1
                yield self._clean(line)
        if not self.lines:
            raise UserError(f"{self.path} is empty; give text with one sentence a line")

    @property
    def not_utf8(self) -> int:
        """The lines read so far that are not UTF-8."""
        return sum(said["times"] for what, said in self.changes.items() if what.startswith("not UTF-8"))

    def check(self) -> None:
        """Say what is not UTF-8, after the last line."""
        if self._broken is None or self._invalid != "error":
            return
        number, byte = self._broken
        raise UserError(
            f"{self.path}, line {number:,}: byte 0x{byte:02x} is not UTF-8, as in {self.not_utf8:,} lines in all; "
            f"{how_to_convert(self.path)}, or give python -m data_prep `--invalid replace` (U+FFFD for such bytes) or "
            "`--invalid drop` (without such pairs), or say the same in the dataset's YAML: `invalid: replace`"
        )

    def _clean(self, line: bytes) -> bytes | None:
        data = line.removesuffix(b"\n")
        if len(line) > _LONGEST or (self.lines == 1 and data == line and b"\r" in line[:-1]):
            self._refuse_endless(line)
        if self.lines == 1 and data.startswith(codecs.BOM_UTF8):
            data = data.removeprefix(codecs.BOM_UTF8)
            self._count("byte order mark at the start, dropped")
        if data.endswith(b"\r"):
            data = data[:-1]
            self._count("line ended by CR LF, now by LF")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            self._broken = self._broken or (self.lines, data[error.start])
            if self._invalid != "replace":
                self._count("not UTF-8, line dropped with its pair")
                return None
            self._count("not UTF-8, line with U+FFFD in such places")
            text = data.decode(errors="replace")
        if BLANK.search(text) is not None:
            for character in BLANK.findall(text):
                self._count(f"U+{ord(character):04X}, now a space")
            text = BLANK.sub(" ", text)
        if not text or text.isspace():
            self._count(EMPTY)
        return text.encode()

    def _count(self, what: str) -> None:
        self.changes.setdefault(what, {"times": 0, "first line": self.lines})["times"] += 1

    def _refuse_endless(self, line: bytes) -> None:
        if b"\r" in line:
            raise UserError(
                f"{self.path}, line {self.lines:,}: its lines end with CR alone, as on an old Macintosh; convert it: "
                f"tr '\\r' '\\n' < {self.path.name} > NEW"
            )
        raise UserError(
            f"{self.path}, line {self.lines:,}: it goes on for more than {_LONGEST:,} bytes; give text with one "
            "sentence a line"
        )


def how_to_convert(path: Path) -> str:
    """Return what to do with a file that is not UTF-8."""
    command = f"iconv -f WINDOWS-1252 -t UTF-8 {path.name} > NEW"
    return f"convert the file (from Windows: {command}; if it is Chinese: -f GB18030 or -f BIG5)"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file decompressed, whatever its name, if it turns out to be text."""
    with damage_told(str(path), _MEND):
        file: Any = path.open("rb", BUFFER)
    with file:
        packing = _packing(path, file.peek(_HEAD)[:_HEAD])
        stream: Any = told(OPENERS[packing](file), str(path), _MEND) if packing else file
        with stream:
            _check_kind(f"{path}, decompressed," if packing else str(path), path.name, stream.peek(_HEAD)[:_HEAD])
            yield stream


def _packing(path: Path, head: bytes) -> str:
    found = next((suffix for suffix, magic in _PACKED.items() if magic.match(head)), "")
    said = packed_suffix(path.name.lower())
    if said and head and found != said:
        raise UserError(f"{path} is not compressed as its name says; give it a name without {said}, or another copy")
    return found


def _check_kind(what: str, name: str, head: bytes) -> None:
    for magic, kind, how in _OTHER_KINDS:
        if re.match(magic, head):
            raise UserError(f"{what} is {kind}, expected plain text in UTF-8: {how.format(file=name)}")
    if any(magic.match(head) for magic in _PACKED.values()):
        raise UserError(f"{what} is compressed once more; decompress it, and give what comes out")
    for encoding in ("UTF-16LE", "UTF-16BE"):
        if _is_utf_16(head, encoding):
            raise UserError(
                f"{what} is text in {encoding} without a byte order mark, expected plain text in UTF-8: "
                f"iconv -f {encoding} -t UTF-8 {name} > NEW"
            )


def _is_utf_16(head: bytes, encoding: str) -> bool:
    """Judge by NUL on one side alone, by line feeds of two bytes, and by NUL in plenty or bytes that are not UTF-8."""
    nuls = {"UTF-16BE": head[0::2].count(0), "UTF-16LE": head[1::2].count(0)}
    here = nuls.pop(encoding)
    if not here or any(nuls.values()):
        return False
    line_feeds = head[: len(head) // 2 * 2].decode(encoding, errors="replace").count("\n")
    if 2 * line_feeds < head.count(b"\n"):
        return False
    if 4 * here > len(head):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # which may end within a character
    except UnicodeDecodeError:
        return line_feeds > 0
    return False
