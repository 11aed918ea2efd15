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
from data_prep.text.readers import HEAD, check_kind, packing_of
from scripts.common.errors import UserError

_LONGEST = 1 << 24  # bytes of a line: a file without line ends would fill the memory

# control characters but the tab, line and paragraph separators, zero width spaces, byte order marks within text;
# joiners, marks of direction and soft hyphens stay, which scripts and emoji are written with
BLANK = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]")

EMPTY = "empty line, kept"  # the only thing in ``SuppliedText.changes`` that changes nothing

_MEND = "unpack it by hand to see what is left of it, or give another copy"


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
        packing = _packing(path, file.peek(HEAD)[:HEAD])
        stream: Any = told(OPENERS[packing](file), str(path), _MEND) if packing else file
        with stream:
            what = f"{path}, decompressed," if packing else str(path)
            check_kind(what, path.name, stream.peek(HEAD)[:HEAD], own=True)
            yield stream


def _packing(path: Path, head: bytes) -> str:
    found = packing_of(head)
    said = packed_suffix(path.name.lower())
    if said and head and found != said:
        raise UserError(f"{path} is not compressed as its name says; give it a name without {said}, or another copy")
    return found
