"""Read the user's own files as lines of clean text; what is changed is counted.

A line ends at LF, or at CR LF, and nowhere else. A byte order mark at the start goes; ``clean_text`` has the rest.
"""

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_prep.archives import BUFFER, damage_told
from data_prep.common.errors import UserError
from data_prep.common.files import POINTER
from data_prep.text.characters import ZERO_WIDTH, drop_zero_width
from data_prep.text.clean import CONTROL, clean_text

_LONGEST = 1 << 24  # bytes of a line: a file without line ends would fill the memory

_HEAD = 1 << 14  # bytes by which a file's kind is told
_SAVE = "save it as plain text in UTF-8, one sentence a line"
_OTHER_KINDS = (
    (re.escape(POINTER), "a pointer of Git LFS in place of the file", "git lfs pull, in the repository it is from"),
    (rb"\xff\xfe|\xfe\xff|\0\0\xfe\xff", "text in UTF-16 or UTF-32", "iconv -f UTF-16 -t UTF-8 {name} > NEW"),
    (rb"(?:[^\0]\0){8}|(?:\0[^\0]){8}", "text in UTF-16", "iconv -f UTF-16LE (or UTF-16BE) -t UTF-8 {name} > NEW"),
    (
        rb"%PDF-|PK[\x03\x05]|\{\\rtf|\x1f\x8b|BZh[1-9]|\xfd7zXZ\0|\x28\xb5\x2f\xfd|(?s:.{257})ustar",
        "a document, an archive or compressed",
        f"unpack it, and {_SAVE}",
    ),
    (
        rb"(?:\xef\xbb\xbf)?\s*<(?i:\?xml|!doctype|html|tmx|xliff|mteval|srcset|refset|tstset)\b",
        "marked up (XML, SGM, TMX or HTML)",
        f"take the sentences out of it, and {_SAVE}",
    ),
)


def check_sides(paths: Sequence[Path]) -> None:
    """Refuse the files of both sides of a corpus if they are one file, or if one is a pipe or has no name in UTF-8.

    Raises:
        UserError: the message names it.
    """
    for path in paths:
        if (name := os.fsencode(path)) != name.decode(errors="replace").encode():
            raise UserError(
                f"{name!r} is not UTF-8, as the files are that would name it; rename the file or its folder"
            )
        if path.is_dir():
            raise UserError(f"{path} is a folder; give the text file of one language")
        if path.exists() and not path.is_file():
            raise UserError(
                f"{path} is a pipe or a device, which can be read only once, and your text is read more than once; "
                "write it to a file, and give that"
            )
    for one, other in pairwise(path for path in paths if path.is_file()):
        if one.samefile(other):
            raise UserError(f"{one} and {other} are one file; give a file for each language")


class SuppliedText:
    """A file of the user's, to be iterated over once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0  # lines read so far
        self.changes: Counter[str] = Counter()  # lines, by what was changed in them

    def __iter__(self) -> Iterator[bytes]:
        """The lines without their ends, in UTF-8."""
        with damage_told(str(self.path)):
            stream: Any = self.path.open("rb", BUFFER)
        with stream:
            self._check_kind(stream.peek(_HEAD)[:_HEAD])
            while line := stream.readline(_LONGEST + 1):
                self.lines += 1
                yield self._clean(line)
        if not self.lines:
            raise UserError(f"{self.path} is empty; give text with one sentence a line")

    def _check_kind(self, head: bytes) -> None:
        for magic, kind, how in _OTHER_KINDS:
            if re.match(magic, head):
                raise UserError(
                    f"{self.path} is {kind}, expected plain text in UTF-8: {how.format(name=self.path.name)}"
                )

    def _clean(self, line: bytes) -> bytes:
        where, name, data = f"{self.path}, line {self.lines:,}", self.path.name, line.removesuffix(b"\n")
        if len(line) > _LONGEST or (self.lines == 1 and data == line and b"\r" in line[:-1]):
            raise UserError(
                f"{where}: it goes on for {len(line):,} bytes or more; give text with one sentence a line (where lines "
                f"end with CR alone, as on an old Macintosh: tr '\\r' '\\n' < {name} > NEW)"
            )
        if self.lines == 1 and data.startswith(codecs.BOM_UTF8):
            data = data.removeprefix(codecs.BOM_UTF8)
            self.changes["byte order marks dropped"] += 1
        if data.endswith(b"\r"):
            data = data[:-1]
            self.changes["lines that ended by CR LF"] += 1
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file (from Windows: iconv -f "
                f"WINDOWS-1252 -t UTF-8 {name} > NEW; if it is Chinese: -f GB18030 or -f BIG5), or leave such bytes "
                f"out (iconv -c -f UTF-8 -t UTF-8 {name} > NEW)"
            ) from error
        rest = drop_zero_width(text)
        changes = {
            "lines with zero width spaces in a script without spaces, dropped": rest != text,
            "lines with zero width spaces, now spaces": ZERO_WIDTH.search(rest),
            "lines with control characters, now spaces": CONTROL.search(text),
        }
        self.changes.update(name for name, applies in changes.items() if applies)
        return clean_text(text).encode()
