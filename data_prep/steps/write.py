"""Writing shards: all languages of all splits that come of one input, committed together by a marker."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from data_prep.dataset import SPLITS
from data_prep.steps.shards import CHUNK, Shard, Text, capacity
from scripts.common import ownership
from scripts.common.files import atomic_file, open_own, read_json, write_json


class ShardWriter:
    """Writes what becomes of one shard, in as many splits as it takes; the marker written last makes it valid."""

    def __init__(self, work: Path, folder: str, number: int, languages: Sequence[str], stack: ExitStack) -> None:
        self._work, self._folder, self._number, self._languages, self._stack = work, folder, number, languages, stack
        self._files: dict[str, list[IO[bytes]]] = {}
        self._lines: dict[str, int] = {}
        self._words: dict[str, list[int]] = {}

    def write(self, split: str, columns: Sequence[Sequence[bytes]]) -> None:
        """Append lines, a column a language, to a split."""
        if not columns[0]:
            return
        if split not in self._files:
            paths = [Shard(split, self._number, self._folder, 0).path(self._work, name) for name in self._languages]
            self._files[split] = [self._stack.enter_context(atomic_file(path, "wb")) for path in paths]
            self._lines[split] = 0
            self._words[split] = [0] * len(self._languages)
        for place, (file, lines) in enumerate(zip(self._files[split], columns, strict=True)):
            block = b"\n".join(lines) + b"\n"
            if len(lines) != len(columns[0]) or block.count(b"\n") != len(lines):
                raise AssertionError(f"a step of {self._folder} made line breaks, or drew the sides apart")
            file.write(block)
            self._words[split][place] += len(block.split())
        self._lines[split] += len(columns[0])

    def result(self) -> dict[str, Any]:
        """Return what the marker says."""
        return {
            "lines": self._lines,
            "words": {
                f"{split}.{language}": count
                for split, counts in self._words.items()
                for language, count in zip(self._languages, counts, strict=True)
            },
        }


@contextmanager
def shard_writer(
    work: Path, folder: str, shard: Shard, languages: Sequence[str], facts: dict[str, Any]
) -> Iterator[ShardWriter]:
    """A writer for what becomes of ``shard``; ``facts`` join the marker when the block ends without an error."""
    with ExitStack() as stack:
        writer = ShardWriter(work, folder, shard.number, languages, stack)
        yield writer
    write_json(marker(work, folder, shard), {**writer.result(), **facts})


def marker(work: Path, folder: str, shard: Shard) -> Path:
    """The file that says a shard's output in ``folder`` is complete."""
    return work / folder / f"{shard.split}.{shard.number:08}.json"


def read_marker(work: Path, folder: str, shard: Shard) -> dict[str, Any] | None:
    """Return what the marker says; None if the shard is still to be done."""
    path = marker(work, folder, shard)
    return read_json(path) if path.exists() else None


def outputs(folder: str, shard: Shard, said: Mapping[str, Any]) -> list[Shard]:
    """The shards that a marker stands for."""
    return [Shard(split, shard.number, folder, lines) for split, lines in said["lines"].items()]


def write_rows(work: Path, folder: str, rows: Iterable[tuple[str, Sequence[str]]], languages: Sequence[str]) -> Text:
    """Rows (the split, and a line a language), splits in any order, to shards; line breaks in them become spaces."""
    splits: dict[str, _Growing] = {}
    for split, row in rows:
        if split not in splits:
            splits[split] = _Growing(work, folder, split, languages)
        splits[split].add(row)
    order = sorted(splits, key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
    return Text({split: tuple(splits[split].finished()) for split in order})


class _Growing:
    """A split to which rows are added one by one."""

    def __init__(self, work: Path, folder: str, split: str, languages: Sequence[str]) -> None:
        self._work, self._folder, self._part, self._languages = work, folder, split, languages
        self._rows: list[Sequence[str]] = []
        self._shards: list[Shard] = []

    def add(self, row: Sequence[str]) -> None:
        if not self._shards or self._shards[-1].lines == capacity(len(self._shards) - 1):
            self._shards.append(Shard(self._part, len(self._shards), self._folder, 0))
        self._rows.append(row)
        room = capacity(len(self._shards) - 1) - self._shards[-1].lines
        if len(self._rows) == min(CHUNK, room):
            self._flush()

    def finished(self) -> list[Shard]:
        """The split's shards, complete."""
        if self._rows:
            self._flush()
        return self._shards

    def _flush(self) -> None:
        shard = self._shards[-1]
        for place, language in enumerate(self._languages):
            with open_own(shard.path(self._work, language), "ab" if shard.lines else "wb") as f:
                f.write(b"".join(row[place].replace("\n", " ").encode() + b"\n" for row in self._rows))
        self._shards[-1] = replace(shard, lines=shard.lines + len(self._rows))
        self._rows.clear()


def remove(work: Path, shard: Shard, languages: Sequence[str]) -> None:
    """Remove a shard whose successor is complete."""
    for language in languages:
        ownership.remove(shard.path(work, language))
