"""Read the user's own text files as clean lines, and count the changed lines.

Only LF and CR LF end a line. A byte order mark at the start is dropped; for the other changes see ``clean_text``.
"""

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_prep.archives import damage_as_user_error
from data_prep.common.errors import UserError
from data_prep.common.files import POINTER, open_counted
from data_prep.common.progress import Advance, ignore_progress
from data_prep.text.characters import ZERO_WIDTH, drop_zero_width
from data_prep.text.clean import CONTROL, clean_text

_LONGEST = 1 << 24  # bytes of a line; a file without line ends would fill the memory

_HEAD = 1 << 14  # bytes in which the kind of a file is recognised
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
    """Check the files of both sides of a corpus before they are read.

    Raises:
        UserError: both are the same file; or one is a folder, a pipe or a device, or has a name that is not UTF-8.
    """
    for path in paths:
        if (name := os.fsencode(path)) != name.decode(errors="replace").encode():
            raise UserError(
                f"{name!r} is not UTF-8, and could not be named in a dataset's YAML; rename the file or its folder"
            )
        if path.is_dir():
            raise UserError(f"{path} is a folder; give the text file of one language")
        if path.exists() and not path.is_file():
            raise UserError(
                f"{path} is a pipe or a device, which can be read only once, and your text is read more than once; "
                "write it to a file, and give that"
            )
    for left, right in pairwise(path for path in paths if path.is_file()):
        if left.samefile(right):
            raise UserError(f"{left} and {right} are the same file; give a file for each language")


class SuppliedText:
    """A text file of the user's, for one iteration over its lines.

    Args:
        path: the file.
        advance: is called with the number of bytes of every read.
    """

    def __init__(self, path: Path, advance: Advance = ignore_progress) -> None:
        self.path = path
        self.lines = 0  # lines read so far
        self.changes: Counter[str] = Counter()  # numbers of changed lines by the change
        self._advance = advance

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines without line ends, in UTF-8."""
        with damage_as_user_error(str(self.path)):
            stream: Any = open_counted(self.path, self._advance)
        with stream:
            self._check_kind(stream.peek(_HEAD)[:_HEAD])
            while line := stream.readline(_LONGEST + 1):
                self.lines += 1
                yield self._clean(line)
        if not self.lines:
            raise UserError(f"{self.path} is empty; give text with one sentence per line")

    def _check_kind(self, head: bytes) -> None:
        for magic, kind, advice in _OTHER_KINDS:
            if re.match(magic, head):
                raise UserError(
                    f"{self.path} is {kind}, expected plain text in UTF-8: {advice.format(name=self.path.name)}"
                )

    def _clean(self, line: bytes) -> bytes:
        place, name, data = f"{self.path}, line {self.lines:,}", self.path.name, line.removesuffix(b"\n")
        if len(line) > _LONGEST or (self.lines == 1 and data == line and b"\r" in line[:-1]):
            raise UserError(
                f"{place}: it has {len(line):,} bytes or more; give text with one sentence per line (if lines end with "
                f"CR alone, as on an old Macintosh: tr '\\r' '\\n' < {name} > NEW)"
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
                f"{place}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file (from Windows: iconv -f "
                f"WINDOWS-1252 -t UTF-8 {name} > NEW; if it is Chinese: -f GB18030 or -f BIG5), or drop such bytes "
                f"(iconv -c -f UTF-8 -t UTF-8 {name} > NEW)"
            ) from error
        rest = drop_zero_width(text)
        changes = {
            "lines with zero width spaces in a script without spaces, dropped": rest != text,
            "lines with zero width spaces, now spaces": ZERO_WIDTH.search(rest),
            "lines with control characters, now spaces": CONTROL.search(text),
        }
        self.changes.update(name for name, applies in changes.items() if applies)
        return clean_text(text).encode()
