"""From a source to shards: pieces of archives, or rows that a kind of dataset makes.

There is one pass over each archive, several archives at a time, and nothing is unpacked to disk.

Sources follow one another in the YAML's order whatever the order in the archives: source s of a split has the shard
numbers from s * 100,000 on, so nothing is copied to concatenate them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from data_prep.archives import named_members
from data_prep.dataset import SPLITS
from data_prep.steps.pool import Pool, tick
from data_prep.steps.registry import READERS
from data_prep.steps.shards import CHUNK, Shard, Text, capacity, shard_sizes
from scripts.common.errors import UserError
from scripts.common.files import open_own, read_json, write_json

_SHARDS_A_SOURCE = 100_000


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
    md5: str | None = None

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"{self.archive.name}, {self.member}" if self.member != self.archive.name else str(self.archive)

    @property
    def key(self) -> str:
        """As state files name it."""
        return f"{self.split}.{self.language}.{self.source}"


@dataclass(frozen=True)
class _Task:
    archive: Path
    pieces: tuple[Piece, ...]
    work: Path
    folder: str

    @property
    def marker(self) -> Path:
        pieces = "\n".join(piece.key for piece in self.pieces)
        return self.work / self.folder / f"{hashlib.sha256(pieces.encode()).hexdigest()[:16]}.json"


def extract(pieces: Sequence[Piece], *, work: Path, folder: str, pool: Pool) -> Text:
    """The lines of all pieces as shards.

    Raises:
        UserError: an archive is damaged or lacks a member, a member has another checksum or bytes that are not UTF-8,
            or the sides of a source have unequal numbers of lines.
    """
    by_archive: dict[Path, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_archive[piece.archive].append(piece)
    tasks = [_Task(archive, tuple(group), work, folder) for archive, group in by_archive.items()]
    # the largest first: the last one running alone is what keeps cores idle
    pending = [task for task in tasks if not task.marker.exists()]
    pending.sort(key=lambda task: -task.archive.stat().st_size if task.archive.exists() else 0)
    for task, lines in pool.run(_extract, pending, what="reading"):
        pool.say(f"read {task.archive.name}: {sum(lines.values()):,} lines")
    counts: dict[str, int] = {}
    for task in tasks:
        counts |= read_json(task.marker)["lines"]
    _check_sides(pieces, counts)
    return _text(pieces, counts, folder)


def _text(pieces: Sequence[Piece], counts: Mapping[str, int], folder: str) -> Text:
    splits: dict[str, dict[int, int]] = {}
    for piece in pieces:
        splits.setdefault(piece.split, {})[piece.source] = counts[piece.key]
    return Text(
        {
            split: tuple(
                Shard(split, source * _SHARDS_A_SOURCE + place, folder, lines)
                for source, count in sorted(sources.items())
                for place, lines in enumerate(shard_sizes(count))
            )
            for split, sources in splits.items()
        }
    )


def _check_sides(pieces: Sequence[Piece], counts: Mapping[str, int]) -> None:
    sources: dict[tuple[str, int], list[Piece]] = defaultdict(list)
    for piece in pieces:
        sources[piece.split, piece.source].append(piece)
    for sides in sources.values():
        if len({counts[side.key] for side in sides}) != 1:
            said = " but ".join(f"{side.name} has {counts[side.key]:,} lines" for side in sides)
            raise UserError(f"{said}; line n of one must translate line n of the other: mend or fetch the files again")
        if counts[sides[0].key] == 0:
            raise UserError(f"{sides[0].name} has no lines; fetch the file again")


def _extract(task: _Task) -> dict[str, int]:
    by_member = {piece.member: piece for piece in task.pieces}
    counts: dict[str, int] = {}
    members = named_members(task.archive, list(by_member))
    with closing(members):
        for name, stream in members:
            counts[by_member[name].key] = _write(by_member[name], stream, task)
    write_json(task.marker, {"lines": counts})
    return counts


@dataclass
class _PieceFacts:
    """The facts that reading a piece brought out."""

    undecodable: int = 0  # lines that are not UTF-8
    first: int = 0  # the number of the first of them
    md5: Any = field(default_factory=lambda: hashlib.md5(usedforsecurity=False))
    """Of all bytes, if it is to be checked."""


def _lines(piece: Piece, stream: Iterable[bytes], found: _PieceFacts) -> Iterator[bytes]:
    """The lines without their LF; those that are not UTF-8 are counted, and replaced where the piece says so."""
    for number, line in enumerate(stream, 1):
        if piece.md5 is not None:
            found.md5.update(line)
        line = line.removesuffix(b"\n")
        try:
            line.decode()
        except UnicodeDecodeError:
            found.undecodable += 1
            found.first = found.first or number
            if piece.invalid == "replace":
                line = line.decode(errors="replace").encode()
        yield line


def _write(piece: Piece, stream: BinaryIO, task: _Task) -> int:
    found = _PieceFacts()
    lines = _lines(piece, stream, found)
    if piece.reader != "plain":
        # bytes that are not UTF-8 pass: the check below fails, or a later pass drops the pair
        text = (line.decode(errors="surrogateescape") for line in lines)
        lines = (line.encode(errors="surrogateescape") for line in READERS[piece.reader](text))
    first = Shard(piece.split, piece.source * _SHARDS_A_SOURCE, task.folder, 0)
    growing = _Growing(first, task.work, (piece.language,))
    while chunk := list(islice(lines, CHUNK)):
        growing.append([chunk])
        tick(len(chunk))
    if found.undecodable and piece.invalid == "error":
        raise UserError(
            f"{piece.name}: {found.undecodable:,} lines are not UTF-8, the first is line {found.first:,}; mend the "
            "file, or say `invalid: replace` or `invalid: drop` of it in the dataset's YAML"
        )
    if piece.md5 is not None and found.md5.hexdigest() != piece.md5:
        raise UserError(
            f"{piece.name}: got MD5 {found.md5.hexdigest()}, expected {piece.md5}; "
            f"delete {piece.archive} and fetch it again"
        )
    return sum(shard.lines for shard in growing.shards)


class _Growing:
    """A source's shards in one split, to which lines are added; ``first`` is the first shard."""

    def __init__(self, first: Shard, work: Path, languages: Sequence[str]) -> None:
        self._work, self._languages = work, languages
        self.shards = [first]

    def append(self, columns: Sequence[Sequence[bytes]]) -> None:
        """Add lines, a column a language."""
        while columns[0]:
            shard, room = self.shards[-1], capacity(len(self.shards) - 1) - self.shards[-1].lines
            if not room:
                self.shards.append(replace(shard, number=shard.number + 1, lines=0))
                continue
            for language, lines in zip(self._languages, columns, strict=True):
                with open_own(shard.path(self._work, language), "ab" if shard.lines else "wb") as f:
                    f.write(b"\n".join(lines[:room]) + b"\n")
            self.shards[-1] = replace(shard, lines=shard.lines + len(columns[0][:room]))
            columns = [lines[room:] for lines in columns]


def write_rows(rows: Iterable[tuple[str, Sequence[str]]], *, work: Path, folder: str, languages: Sequence[str]) -> Text:
    """Rows (the split, and a line a language), splits in any order, to shards; line breaks in them become spaces."""
    waiting: dict[str, list[list[bytes]]] = {}
    splits: dict[str, _Growing] = {}
    for split, row in rows:
        if split not in splits:
            waiting[split], splits[split] = [], _Growing(Shard(split, 0, folder, 0), work, languages)
        waiting[split].append([line.replace("\n", " ").encode() for line in row])
        if len(waiting[split]) == CHUNK:
            splits[split].append(list(zip(*waiting.pop(split), strict=True)))
            waiting[split] = []
    for split, rest in waiting.items():
        if rest:
            splits[split].append(list(zip(*rest, strict=True)))
    order = sorted(splits, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
    return Text({split: tuple(splits[split].shards) for split in order})
