"""Read the raw text into the files of the first pass: members of archives, or rows that a kind of dataset yields.

Each archive is read once, and nothing is unpacked to disk. The order in the YAML counts, not that in the archives: each
source is written to its own files.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path

from data_prep.archives import named_members
from data_prep.common.errors import UserError
from data_prep.common.progress import print_line, progress
from data_prep.dataset import SPLITS
from data_prep.steps.corpus import CHUNK, Context, open_synced
from data_prep.text.readers import READERS
from data_prep.text.writing import check_script

Rows = Iterator[tuple[str, Sequence[str]]]
"""Rows that a kind of dataset yields: the split, and the line in each language."""


@dataclass(frozen=True)
class Piece:
    """One language of one source: a member of an archive. A file that is no archive is its own only member."""

    split: str
    source: int
    language: str
    archive: Path
    member: str
    reader: str = "plain"
    invalid: str = "error"

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"{self.archive.name}, {self.member}" if self.member != self.archive.name else str(self.archive)

    @property
    def file(self) -> str:
        """The name of its file in the first pass."""
        return f"{self.split}.{self.language}.{self.source}"


def read_pieces(pieces: Sequence[Piece], context: Context) -> None:
    """Write the lines of all pieces, and show the progress.

    Raises:
        UserError: an archive is damaged or lacks a member; a member is not UTF-8, or not in a script of its language;
            or the sides of a source have different numbers of lines.
    """
    by_archive: dict[Path, dict[str, Piece]] = defaultdict(dict)
    for piece in pieces:
        by_archive[piece.archive][piece.member] = piece
    counts: dict[Piece, int] = {}
    size = sum(archive.stat().st_size for archive in by_archive if archive.is_file())
    with progress("reading", size, "B") as advance:
        for archive, by_member in by_archive.items():
            with closing(named_members(archive, list(by_member), advance)) as members:
                for member, stream in members:
                    counts[by_member[member]] = _write(by_member[member], stream, context)
            print_line(f"read {archive.name}: {sum(counts[piece] for piece in by_member.values()):,} lines")
    context.lines = dict.fromkeys((piece.split for piece in pieces), 0)
    sources: dict[tuple[str, int], list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda piece: piece.source):
        sources[piece.split, piece.source].append(piece)
        context.files.setdefault(f"{piece.split}.{piece.language}", []).append(f"{context.folder}/{piece.file}")
    for (split, _), sides in sources.items():
        if len({counts[side] for side in sides}) != 1:
            numbers = " but ".join(f"{side.name} has {counts[side]:,} lines" for side in sides)
            raise UserError(
                f"{numbers}; line n of one must translate line n of the other: correct the files or fetch them again"
            )
        if counts[sides[0]] == 0:
            raise UserError(f"{sides[0].name} has no lines; fetch the file again")
        context.lines[split] += counts[sides[0]]


def _write(piece: Piece, stream: BufferedReader, context: Context) -> int:
    """Write the lines of a piece to its file; returns their number."""
    count = 0

    def read() -> Iterator[str]:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode(errors="replace" if piece.invalid == "replace" else "strict")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{piece.name}: line {number:,} is not UTF-8; correct the file, or write `invalid: replace` for it "
                    "in the dataset's YAML (U+FFFD for such bytes)"
                ) from error
            yield text.removesuffix("\n")

    lines = read() if piece.reader == "plain" else READERS[piece.reader](read())
    with open_synced(context.work / context.folder / piece.file) as f:
        while chunk := list(islice(lines, CHUNK)):
            if count == 0:
                check_script(piece.language, Counter("".join(chunk)), piece.name)
            f.write("".join(f"{line}\n" for line in chunk).encode())
            count += len(chunk)
    return count


def write_rows(rows: Rows, context: Context) -> None:
    """Write rows, which may come in any order of splits; line breaks in them become spaces."""
    for split, row in rows:
        context.write(split, [line.replace("\n", " ").encode() + b"\n" for line in row], 1)
    order = sorted(context.lines, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
    context.lines = {split: context.lines[split] for split in order}
