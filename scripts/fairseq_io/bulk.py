"""Answers to all lines of a file: lines of like length are translated together, and what is done is kept.

Lines are read a window at a time. Those of a window are sorted by length and put into batches of about as many tokens,
so that little of a batch is padding. The answers of a window come out in the order of its lines. Batches depend on the
file and on the limit of tokens alone: a run that goes on after a kill translates the batches that are not done, as they
would have been translated, and its output is the same byte for byte.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from data_prep.common.outputs import open_own
from scripts.fairseq_io.translator import Answer

WINDOW = 4096  # lines
MAX_TOKENS = 2048  # of a batch, padding included


class Searcher(Protocol):
    """The part of a ``Translator`` that is needed here."""

    def search(self, lines: Sequence[str], count: int) -> list[list[Answer]]: ...


class KeptAnswers:
    """Answers of batches that are done, by the numbers of their lines; in a file that gets a line for each batch."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.answers = file, dict[int, list[Answer]]()
        if file is None or not file.exists():
            return
        whole = 0  # bytes of the lines that are complete: a killed run may have left a part of one
        for line in file.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            for number, several in json.loads(line):
                self.answers[number] = [Answer(*answer) for answer in several]
        with open_own(file, "r+b") as f:
            f.truncate(whole)

    def add(self, answers: dict[int, list[Answer]]) -> None:
        self.answers |= answers
        if self.file is not None:
            with open_own(self.file, "a", encoding="utf-8", newline="\n") as f:
                f.write(json.dumps(list(answers.items())) + "\n")


def plan(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return batches of places in ``lengths``, the longest first: as many as ``max_tokens`` holds, padded, or one."""
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(place)
    return batches


def answer_all(
    lines: Iterable[bytes],
    prepare: Callable[[bytes, int], str],
    model: Searcher,
    count: int,
    kept: KeptAnswers,
    *,
    max_tokens: int = MAX_TOKENS,
    report: Callable[[int], None] = lambda done: None,
) -> Iterator[list[Answer]]:
    """Yield the ``count`` best hypotheses of each line, in order; none for a line without tokens.

    Args:
        lines: of the file.
        prepare: a line and its number, from 1, to the tokens that the model takes.
        model: what translates.
        count: of hypotheses.
        kept: what is done, and takes in what is done here.
        max_tokens: of the source, in a batch.
        report: is called with a number of lines whenever so many more are done.
    """
    numbered = enumerate(lines, 1)
    while window := list(islice(numbered, WINDOW)):
        sources = {number: source for number, line in window if (source := prepare(line, number)).strip()}
        report(len(window) - len(sources))
        numbers = list(sources)
        for batch in plan([len(source.split()) for source in sources.values()], max_tokens):
            batch_numbers = [numbers[place] for place in batch]
            if any(number not in kept.answers for number in batch_numbers):
                found = model.search([sources[number] for number in batch_numbers], count)
                kept.add(dict(zip(batch_numbers, found, strict=True)))
            report(len(batch))
        for number, _ in window:
            yield kept.answers.pop(number, [])
