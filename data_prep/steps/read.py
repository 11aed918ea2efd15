"""From a source to the first pass's files: pieces of archives, or rows that a kind of dataset makes.

There is one pass over each archive, and nothing is unpacked to disk. Sources follow one another in the YAML's order
whatever the order in the archives: each has files of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path

from data_prep.archives import named_members
from data_prep.common.errors import UserError
from data_prep.dataset import SPLITS
from data_prep.steps.corpus import CHUNK, Context, open_synced
from data_prep.text.readers import READERS
from data_prep.text.writing import check_script

Rows = Iterator[tuple[str, Sequence[str]]]
"""Text that a kind of its own makes: the split, and a line a language."""


@dataclass(frozen=True)
class Piece:
    """One language of one source: a member of an archive; of a file that is no archive, the file by its own name."""

    split: str
    source: int
    language: str
    archive: Path
    member: str
    reader: str = "plain"
    invalid: str = "error"

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"{self.archive.name}, {self.member}" if self.member != self.archive.name else str(self.archive)

    @property
    def file(self) -> str:
        """Its own file of lines."""
        return f"{self.split}.{self.language}.{self.source}"


def read_pieces(pieces: Sequence[Piece], context: Context) -> None:
    """Write the lines of all pieces.

    Raises:
        UserError: an archive is damaged or lacks a member; a member has bytes that are not UTF-8, or is in a script
            that the code of its language does not say; or the sides of a source have unequal numbers of lines.
    """
    by_archive: dict[Path, dict[str, Piece]] = defaultdict(dict)
    for piece in pieces:
        by_archive[piece.archive][piece.member] = piece
    counts: dict[Piece, int] = {}
    progress = context.pool.progress("reading")
    for archive, by_member in by_archive.items():
        with closing(named_members(archive, list(by_member))) as members:
            for member, stream in members:
                counts[by_member[member]] = _write(by_member[member], stream, context, progress)
        context.pool.say(f"read {archive.name}: {sum(counts[piece] for piece in by_member.values()):,} lines")
    context.lines = dict.fromkeys((piece.split for piece in pieces), 0)
    sources: dict[tuple[str, int], list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda piece: piece.source):
        sources[piece.split, piece.source].append(piece)
        context.files.setdefault(f"{piece.split}.{piece.language}", []).append(f"{context.folder}/{piece.file}")
    for (split, _), sides in sources.items():
        if len({counts[side] for side in sides}) != 1:
            said = " but ".join(f"{side.name} has {counts[side]:,} lines" for side in sides)
            raise UserError(f"{said}; line n of one must translate line n of the other: mend or fetch the files again")
        if counts[sides[0]] == 0:
            raise UserError(f"{sides[0].name} has no lines; fetch the file again")
        context.lines[split] += counts[sides[0]]


def _write(piece: Piece, stream: BufferedReader, context: Context, progress: Callable[[int], None]) -> int:
    """Write the lines of a piece to its file; returns how many."""
    count = 0

    def read() -> Iterator[str]:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode(errors="replace" if piece.invalid == "replace" else "strict")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{piece.name}: line {number:,} is not UTF-8; mend the file, or say `invalid: replace` of it in "
                    "the dataset's YAML (U+FFFD for such bytes)"
                ) from error
            yield text.removesuffix("\n")

    lines = read() if piece.reader == "plain" else READERS[piece.reader](read())
    with open_synced(context.work / context.folder / piece.file) as f:
        while chunk := list(islice(lines, CHUNK)):
            if count == 0:
                check_script(piece.language, Counter("".join(chunk)), piece.name)
            f.write("".join(f"{line}\n" for line in chunk).encode())
            count += len(chunk)
            progress(len(chunk))
    return count


def write_rows(rows: Rows, context: Context) -> None:
    """Write rows, splits in any order; line breaks in them become spaces."""
    for split, row in rows:
        context.write(split, [line.replace("\n", " ").encode() + b"\n" for line in row], 1)
    order = sorted(context.lines, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
    context.lines = {split: context.lines[split] for split in order}
