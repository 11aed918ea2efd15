"""The files between steps: splits in shards, a file a language, each written whole or not at all.

A shard of a split is the files ``<split>.<language>.<number>`` of equal line counts; a split's shards in order of their
numbers, one after the other, are the split. Numbers may have gaps. Lines are UTF-8 and end with LF, which is the only
thing that ends a line: carriage returns and the like inside a line stay there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeVar

Line = TypeVar("Line", str, bytes)

CHUNK = 1_000  # lines in memory at a time
_SMALL, _LARGE = 5_000, 50_000  # lines of a source's first shards, and of all others
_SMALL_ONES = 20


def capacity(place: int) -> int:
    """Return how many lines a source's shard at ``place`` takes.

    The first ones are small, so that 30,000 lines keep several cores busy; the others so large that a corpus of 40
    million lines is some thousand files, and so small that an interruption loses little.
    """
    return _SMALL if place < _SMALL_ONES else _LARGE


def shard_sizes(lines: int) -> list[int]:
    """The lines of each of the shards that so many lines of a source make."""
    sizes: list[int] = []
    while lines > 0:
        sizes.append(min(lines, capacity(len(sizes))))
        lines -= sizes[-1]
    return sizes


@dataclass(frozen=True, order=True)
class Shard:
    """One shard: ``folder`` is a step's folder, relative to the work folder."""

    split: str
    number: int
    folder: str
    lines: int

    def path(self, work: Path, language: str) -> Path:
        """The file of one language."""
        return work / self.folder / f"{self.split}.{language}.{self.number:08}"


@dataclass(frozen=True)
class Text:
    """All there is at a point between two steps: the shards of each split in order."""

    splits: Mapping[str, tuple[Shard, ...]]

    def lines(self, split: str) -> int:
        """Return how many lines, or pairs of lines, a split has."""
        return sum(shard.lines for shard in self.splits.get(split, ()))

    def sizes(self) -> dict[str, int]:
        """The lines of each split."""
        return {split: self.lines(split) for split in self.splits}

    def __str__(self) -> str:
        return ", ".join(f"{split} {lines:,}" for split, lines in self.sizes().items())

    def starts(self, split: str) -> dict[Shard, int]:
        """The shards of a split, and how many of its lines come before each."""
        shards = self.splits[split]
        return dict(zip(shards, accumulate((shard.lines for shard in shards), initial=0), strict=False))

    def replace(self, new: Mapping[str, Iterable[Shard]]) -> "Text":
        """With other shards for some splits."""
        changed = {split: tuple(sorted(shards, key=lambda shard: shard.number)) for split, shards in new.items()}
        return Text({**self.splits, **changed})

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a state file."""
        return {split: [asdict(shard) for shard in shards] for split, shards in self.splits.items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Text":
        """The inverse of ``to_json``."""
        return Text({split: tuple(Shard(**shard) for shard in shards) for split, shards in data.items()})


def read_chunks(path: Path) -> Iterator[list[bytes]]:
    """The lines of a file without their LF, ``CHUNK`` at a time."""
    with open(path, "rb") as f:
        while lines := [line.removesuffix(b"\n") for line in islice(f, CHUNK)]:
            yield lines


def select(columns: Sequence[Sequence[Line]], keep: Sequence[bool]) -> list[list[Line]]:
    """Of each language's lines, those that are kept."""
    return [[line for line, stays in zip(column, keep, strict=True) if stays] for column in columns]
