"""The context of a step of the whole corpus, and the pass over all shards of some splits that it is built from."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from data_prep.dataset import Step
from data_prep.steps.pool import Pool, tick
from data_prep.steps.shards import Shard, Text, read_chunks, select
from scripts.common import ownership
from scripts.common.files import atomic_file, read_json, write_json

Blocks = tuple[list[bytes], ...]  # some lines of a shard: a list a language, of equal lengths

EXAMPLES = 3  # pairs that are shown of a step that drops many
_SHOWN = 60  # letters of each side


def excerpt(line: bytes | str) -> str:
    """Return a line as it is shown to people: short, and without what a terminal would obey."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:_SHOWN])
    return plain + ("..." if len(text) > _SHOWN else "")


class ShardWriter:
    """Writes what becomes of one shard, in as many splits as it takes; the marker written last makes it valid."""

    def __init__(self, task: "ShardTask", stack: ExitStack) -> None:
        self._task, self._stack = task, stack
        self._files: dict[str, list[IO[bytes]]] = {}
        self.lines: Counter[str] = Counter()  # by split
        self.words: Counter[str] = Counter()  # by ``<split>.<language>``

    def write(self, split: str, columns: Sequence[Sequence[bytes]]) -> None:
        """Append lines, a column a language, to a split."""
        if not columns[0]:
            return
        task = self._task
        if split not in self._files:
            shard = replace(task.shard, split=split, folder=task.folder)
            paths = [shard.path(task.work, language) for language in task.languages]
            self._files[split] = [self._stack.enter_context(atomic_file(path, "wb")) for path in paths]
        for language, file, lines in zip(task.languages, self._files[split], columns, strict=True):
            block = b"\n".join(lines) + b"\n"
            if len(lines) != len(columns[0]) or block.count(b"\n") != len(lines):
                raise AssertionError(f"a step of {task.folder} made line breaks, or drew the sides apart")
            file.write(block)
            self.words[f"{split}.{language}"] += len(block.split())
        self.lines[split] += len(columns[0])


@dataclass(frozen=True)
class ShardTask:
    """A task that makes something of one shard, in the step's own folder."""

    shard: Shard
    folder: str
    work: Path
    languages: tuple[str, ...]
    job: Callable[["ShardTask"], None]

    def run(self) -> None:
        """Do the job, in a worker."""
        self.job(self)

    @property
    def marker(self) -> Path:
        """The file that says the shard's output is complete: lines, words, and what the job adds."""
        return self.work / self.folder / f"{self.shard.split}.{self.shard.number:08}.json"

    def blocks(self) -> Iterator[Blocks]:
        """The lines of the shard, a few of all languages at a time."""
        return zip(*(read_chunks(self.shard.path(self.work, name)) for name in self.languages), strict=True)

    @contextmanager
    def writer(self, facts: dict[str, Any]) -> Iterator[ShardWriter]:
        """Writes what becomes of the shard; ``facts`` join its marker when the block ends without an error."""
        with ExitStack() as stack:
            writer = ShardWriter(self, stack)
            yield writer
        write_json(self.marker, {"lines": writer.lines, "words": writer.words, **facts})

    def route(self, splits: Sequence[str], split_of: Callable[[Blocks], Sequence[str | None]]) -> None:
        """Write each row to the one of ``splits`` that ``split_of`` names for it; None: it is dropped."""
        examples: list[list[str]] = []
        with self.writer({"examples": examples}) as writer:
            for blocks in self.blocks():
                chosen = split_of(blocks)
                if None in chosen and len(examples) < EXAMPLES:
                    gone = zip(*select(blocks, [each is None for each in chosen]), strict=True)
                    examples += [[excerpt(line) for line in row] for row, _ in zip(gone, range(EXAMPLES), strict=False)]
                for split in splits:
                    writer.write(split, select(blocks, [each == split for each in chosen]))
                tick(len(chosen))


@dataclass(frozen=True)
class Context:
    """The place and the tools of a step."""

    work: Path
    folder: str  # the step's own folder in ``work``
    languages: tuple[str, ...]
    pool: Pool
    keep: bool  # keep the shards that a step has read

    @property
    def path(self) -> Path:
        """The step's own folder."""
        return self.work / self.folder

    def task(self, shard: Shard, job: Callable[[ShardTask], None]) -> ShardTask:
        """A task for the pool; ``job`` is importable by name, or a ``partial`` of such a function."""
        return ShardTask(shard, self.folder, self.work, self.languages, job)

    def rewrite(
        self, text: Text, jobs: Mapping[Shard, Callable[[ShardTask], None]], what: str
    ) -> tuple[Text, dict[Shard, Any]]:
        """Do a job for each shard that has no marker yet, and put what comes out in the place of what went in.

        A shard is removed as soon as what came of it is complete: intermediates take the disk once, not twice.

        Returns:
            the text afterwards, in which splits of the shards are replaced and new splits added; and what each shard's
            marker says.
        """
        tasks = [self.task(shard, job) for shard, job in jobs.items()]
        pending = [task for task in tasks if not task.marker.exists()]
        for shard in set(jobs) - {task.shard for task in pending}:
            self._remove(shard)
        lines = sum(shard.lines for shard in jobs)
        done = lines - sum(task.shard.lines for task in pending)
        for task, _ in self.pool.run(ShardTask.run, pending, what=what, lines=lines, done=done):
            self._remove(task.shard)
        said = {task.shard: read_json(task.marker) for task in tasks}
        new: dict[str, list[Shard]] = {shard.split: [] for shard in jobs}
        for shard, marker in said.items():
            for split, count in marker["lines"].items():
                new.setdefault(split, []).append(Shard(split, shard.number, self.folder, count))
        return text.replace(new), said

    def _remove(self, shard: Shard) -> None:
        if not self.keep:
            for language in self.languages:
                ownership.remove(shard.path(self.work, language))


CorpusStep = Callable[[Context, Text, Step], tuple[Text, list[dict[str, Any]]]]
"""A step that sees the whole corpus: the text after it, and what the log says of each split."""


def first_examples(markers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the first of what was dropped, in the order of the shards."""
    return [example for marker in markers for example in marker.get("examples", [])][:EXAMPLES]
