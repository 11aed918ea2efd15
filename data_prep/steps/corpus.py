"""The text between two passes, a file a language for each split, and the context of a pass over it.

Lines are UTF-8 and end with LF, which is the only thing that ends a line: carriage returns and the like inside a line
stay there.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from data_prep.dataset import Step
from data_prep.steps.pool import Pool
from scripts.common.files import open_own

Line = TypeVar("Line", str, bytes)
Block = tuple[bytes, ...]  # some lines of a split: the same number of whole lines for each language

CHUNK = 2_000  # lines of a block
EXAMPLES = 3  # pairs that are shown of a step that drops many
_SHOWN = 60  # letters of each side


@dataclass(frozen=True)
class Text:
    """All there is at a point between two passes."""

    lines: dict[str, int]  # by split
    files: dict[str, list[str]]
    """By ``<split>.<language>``, relative to the work folder; one after the other they are the split."""

    def __str__(self) -> str:
        return ", ".join(f"{split} {lines:,}" for split, lines in self.lines.items())

    def replace(self, lines: dict[str, int], files: dict[str, list[str]]) -> "Text":
        """With other lines for some splits."""
        return Text(self.lines | lines, self.files | files)


class Writer:
    """Writes splits to a pass's folder, and counts their lines."""

    def __init__(self, folder: Path, languages: Sequence[str], stack: ExitStack) -> None:
        self._folder, self._languages, self._stack = folder, languages, stack
        self._files: dict[str, list[IO[bytes]]] = {}
        self.lines: dict[str, int] = {}

    def write(self, split: str, block: Sequence[bytes], lines: int) -> None:
        """Append so many lines of each language to a split."""
        if split not in self._files:
            paths = [self._folder / f"{split}.{language}" for language in self._languages]
            self._files[split] = [self._stack.enter_context(open_own(path, "wb")) for path in paths]
        for file, part in zip(self._files[split], block, strict=True):
            file.write(part)
        self.lines[split] = self.lines.get(split, 0) + lines

    def files(self) -> dict[str, list[str]]:
        """The files written, as ``Text`` has them."""
        names = [f"{split}.{language}" for split in self._files for language in self._languages]
        return {name: [f"{self._folder.name}/{name}"] for name in names}

    def sync(self) -> None:
        """Have it all on the disk."""
        for file in chain.from_iterable(self._files.values()):
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class Context:
    """The place and the tools of a pass."""

    work: Path
    folder: str  # the pass's own folder in ``work``
    languages: tuple[str, ...]
    pool: Pool

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Write splits to the pass's folder until the block ends."""
        with ExitStack() as stack:
            writer = Writer(self.work / self.folder, self.languages, stack)
            yield writer
            writer.sync()

    def blocks(
        self, text: Text, split: str, what: str, *, languages: Sequence[str] = (), lines: int | None = None
    ) -> Iterator[Block]:
        """Yield a split ``lines`` at a time (CHUNK), and show the progress under the name ``what``."""
        progress = self.pool.progress(what, text.lines[split])

        def lines_of(language: str) -> Iterator[bytes]:
            for file in text.files[f"{split}.{language}"]:
                with open(self.work / file, "rb") as f:
                    yield from f

        sides = [lines_of(language) for language in languages or self.languages]
        while first := list(islice(sides[0], lines or CHUNK)):
            others = (b"".join(islice(side, len(first))) for side in sides[1:])
            yield (b"".join(first), *others)
            progress(len(first))

    def route(
        self, text: Text, split: str, what: str, choose: Callable[[list[list[bytes]]], list[str | None]]
    ) -> tuple[Text, list[list[str]]]:
        """Write each row to the split that ``choose`` names for it; None: it is dropped.

        Args:
            choose: is given some rows at a time, as a list of lines for each language, in order.

        Returns:
            the text afterwards, and the first rows that were dropped.
        """
        examples: list[list[str]] = []
        with self.writer() as writer:
            writer.write(split, [b""] * len(self.languages), 0)
            for block in self.blocks(text, split, what):
                chosen = choose(columns := columns_of(block))
                for name in dict.fromkeys(chosen):
                    rows = select(columns, [each == name for each in chosen])
                    if name is not None:
                        writer.write(name, [b"\n".join(side) + b"\n" for side in rows], len(rows[0]))
                    elif len(examples) < EXAMPLES:
                        examples += [list(map(excerpt, row)) for row in zip(*rows, strict=True)]
        return text.replace(writer.lines, writer.files()), examples[:EXAMPLES]


WholeStep = Callable[[Context, Text, Step], tuple[Text, list[dict[str, Any]]]]
"""A step that sees the whole corpus: the text after it, and what the log says of each split."""


def columns_of(block: Block) -> list[list[bytes]]:
    """The lines of a block without their LF, for each language."""
    return [side.removesuffix(b"\n").split(b"\n") for side in block]


def select(columns: Sequence[Sequence[Line]], keep: Sequence[bool]) -> list[list[Line]]:
    """Of each language's lines, those that are kept."""
    return [[line for line, stays in zip(column, keep, strict=True) if stays] for column in columns]


def excerpt(line: bytes | str) -> str:
    """Return a line as it is shown to people: short, and without what a terminal would obey."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:_SHOWN])
    return plain + ("..." if len(text) > _SHOWN else "")
