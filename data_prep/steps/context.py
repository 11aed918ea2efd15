"""The context of a step between shards, and the pass over all shards of some splits that it is built from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from data_prep.steps.pool import Pool, tick
from data_prep.steps.shards import Shard, Text, read_chunks, select
from data_prep.steps.write import ShardWriter, outputs, read_marker, remove, shard_writer

Blocks = tuple[list[bytes], ...]
"""Some lines of a shard: a list a language, of equal lengths."""

EXAMPLES = 3
"""Pairs that are shown of a step that drops many."""
_SHOWN = 60  # letters of each side


def shown(line: bytes | str) -> str:
    """Return a line as it is shown to people: short, and without what a terminal would obey."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:_SHOWN])
    return plain + ("..." if len(text) > _SHOWN else "")


@dataclass(frozen=True)
class ShardTask:
    """A task that makes something of one shard, in the step's own folder."""

    shard: Shard
    folder: str
    work: Path
    languages: tuple[str, ...]

    def blocks(self) -> Iterator[Blocks]:
        """The lines of the shard, a few of all languages at a time."""
        return zip(*(read_chunks(self.shard.path(self.work, name)) for name in self.languages), strict=True)

    def writer(self, facts: dict[str, Any] | None = None) -> AbstractContextManager[ShardWriter]:
        """Writes what becomes of the shard; ``facts`` join its marker."""
        return shard_writer(self.work, self.folder, self.shard, self.languages, {} if facts is None else facts)

    def route(self, splits: Sequence[str], split_of: Callable[[Blocks], Sequence[str | None]]) -> None:
        """Write each row to the one of ``splits`` that ``split_of`` names for it; None: it is dropped."""
        examples: list[list[str]] = []
        with self.writer({"examples": examples}) as writer:
            for blocks in self.blocks():
                chosen = split_of(blocks)
                if None in chosen and len(examples) < EXAMPLES:
                    gone = zip(*select(blocks, [each is None for each in chosen]), strict=True)
                    examples += [[shown(line) for line in row] for row, _ in zip(gone, range(EXAMPLES), strict=False)]
                for split in splits:
                    writer.write(split, select(blocks, [each == split for each in chosen]))
                tick(len(chosen))


Task = TypeVar("Task", bound=ShardTask)


@dataclass(frozen=True)
class Context:
    """The place and the tools of a step."""

    work: Path
    folder: str
    """The step's own folder in ``work``."""
    languages: tuple[str, ...]
    pool: Pool
    keep: bool
    """Keep the shards that a step has read."""

    @property
    def path(self) -> Path:
        """The step's own folder."""
        return self.work / self.folder

    def rewrite(
        self, text: Text, shards: Sequence[Shard], make: Callable[[Shard], Task], run: Callable[[Task], None], what: str
    ) -> tuple[Text, dict[Shard, Any]]:
        """Run a task for each shard that has no marker yet, and put what comes out in the place of what went in.

        A shard is removed as soon as what came of it is complete: intermediates take the disk once, not twice.

        Returns:
            the text afterwards, in which splits of ``shards`` are replaced and new splits added; and what each shard's
            marker says.
        """
        said: dict[Shard, Any] = {}
        for shard in shards:
            if (marker := read_marker(self.work, self.folder, shard)) is not None:
                said[shard] = marker
                self._remove(shard)
        pending = [make(shard) for shard in shards if shard not in said]
        done = sum(shard.lines for shard in said)
        lines = sum(shard.lines for shard in shards)
        for task, _ in self.pool.run(run, pending, what=what, lines=lines, done=done):
            said[task.shard] = read_marker(self.work, self.folder, task.shard)
            self._remove(task.shard)
        new: dict[str, list[Shard]] = {shard.split: [] for shard in shards}
        for shard in shards:
            for output in outputs(self.folder, shard, said[shard]):
                new.setdefault(output.split, []).append(output)
        return text.replace(new), {shard: said[shard] for shard in shards}

    def _remove(self, shard: Shard) -> None:
        if not self.keep:
            remove(self.work, shard, self.languages)


def learnt_files(name: str, languages: Sequence[str], *, joint: bool) -> dict[str, tuple[str, ...]]:
    """Return where in the work folder what is learnt from train lies, with the languages that each file is for."""
    return {name: tuple(languages)} if joint else {f"{name}.{language}": (language,) for language in languages}
