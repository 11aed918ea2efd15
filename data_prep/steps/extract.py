"""From archives to shards: one pass over each archive, several archives at a time, nothing unpacked to disk.

Sources follow one another in the YAML's order whatever the order in the archives: source s of a split has the shard
numbers from s * 100,000 on, so nothing is copied to concatenate them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from data_prep.fetch.archives import named_members
from data_prep.steps.pool import Pool, tick
from data_prep.steps.registry import READERS
from data_prep.steps.shards import CHUNK, Shard, Text, capacity, spread
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
    pending = sorted((task for task in tasks if not task.marker.exists()), key=lambda task: -_size(task.archive))
    for task, lines in pool.run(_extract, pending, what="reading"):
        pool.say(f"read {task.archive.name}: {sum(lines.values()):,} lines")
    counts: dict[str, int] = {}
    for task in tasks:
        counts |= read_json(task.marker)["lines"]
    _check_sides(pieces, counts)
    return _text(pieces, counts, folder)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _text(pieces: Sequence[Piece], counts: Mapping[str, int], folder: str) -> Text:
    splits: dict[str, dict[int, int]] = {}
    for piece in pieces:
        splits.setdefault(piece.split, {})[piece.source] = counts[piece.key]
    return Text(
        {
            split: tuple(
                Shard(split, source * _SHARDS_A_SOURCE + place, folder, lines)
                for source, count in sorted(sources.items())
                for place, lines in enumerate(spread(count))
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


class _Digest:
    """Iterates over a stream's lines and knows the MD5 of all bytes once it has been read."""

    def __init__(self, stream: BinaryIO, *, wanted: bool) -> None:
        self._stream, self._wanted = stream, wanted
        self.md5 = hashlib.md5(usedforsecurity=False)

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            if self._wanted:
                self.md5.update(line)
            yield line


class _Decoder:
    """Lines without their LF as UTF-8 text, and what was wrong with them."""

    def __init__(self, lines: Iterable[bytes], invalid: str) -> None:
        self._lines, self._invalid = lines, invalid
        self.count = 0
        self.first = 0

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(self._lines, 1):
            line = line.removesuffix(b"\n")
            try:
                line.decode()
            except UnicodeDecodeError:
                self.count += 1
                self.first = self.first or number
                if self._invalid == "replace":
                    line = line.decode(errors="replace").encode()
            yield line


def _write(piece: Piece, stream: BinaryIO, task: _Task) -> int:
    raw = _Digest(stream, wanted=piece.md5 is not None)
    decoder = _Decoder(raw, piece.invalid)
    lines: Iterable[bytes] = decoder
    if piece.reader != "plain":
        text = (line.decode(errors="replace") for line in decoder)  # where it matters, the check below fails
        lines = (line.encode() for line in READERS[piece.reader](text))
    count = 0
    iterator = iter(lines)
    for place in range(_SHARDS_A_SOURCE):
        path = Shard(piece.split, piece.source * _SHARDS_A_SOURCE + place, task.folder, 0).path(
            task.work, piece.language
        )
        full = count + capacity(place)
        with open_own(path, "wb") as f:
            while count < full and (chunk := list(islice(iterator, min(CHUNK, full - count)))):
                f.write(b"\n".join(chunk) + b"\n")
                count += len(chunk)
                tick(len(chunk))
        if count < full:
            break
    if decoder.count and piece.invalid == "error":
        raise UserError(
            f"{piece.name}: {decoder.count:,} lines are not UTF-8, the first is line {decoder.first:,}; mend the file, "
            "or say `invalid: replace` or `invalid: drop` of it in the dataset's YAML"
        )
    if piece.md5 is not None and raw.md5.hexdigest() != piece.md5:
        raise UserError(
            f"{piece.name}: got MD5 {raw.md5.hexdigest()}, expected {piece.md5}; "
            f"delete {piece.archive} and fetch it again"
        )
    return count
