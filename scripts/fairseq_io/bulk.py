"""Translate all lines of a file: lines of similar length share a batch, and finished batches are kept.

Lines are read in windows of ``WINDOW`` lines. The lines of a window are sorted by length and put into batches of about
as many tokens each, so that batches have little padding. The answers come in the order of the lines. Batches depend
only on the file and on the limit of tokens: a run that resumes after a kill makes the same batches and translates those
that are missing, and its output is the same byte for byte.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from data_prep.common.outputs import open_own
from data_prep.common.progress import Advance, ignore_progress
from scripts.fairseq_io.translator import Answer

WINDOW = 4096  # lines
MAX_TOKENS = 2048  # in a batch, including padding


class Searcher(Protocol):
    """The part of a ``Translator`` that is needed here."""

    def search(self, lines: Sequence[str], count: int) -> list[list[Answer]]: ...


class KeptAnswers:
    """Answers by line number, in memory and in a file, to which each batch adds a line of JSON.

    Args:
        file: the file, which is read if it exists; None: the answers are only in memory.
    """

    def __init__(self, file: Path | None) -> None:
        self.file, self.answers = file, dict[int, list[Answer]]()
        if file is None or not file.exists():
            return
        complete_bytes = 0  # a killed run may have left a part of a line
        for line in file.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            complete_bytes += len(line)
            for number, hypotheses in json.loads(line):
                self.answers[number] = [Answer(*hypothesis) for hypothesis in hypotheses]
        with open_own(file, "r+b") as f:
            f.truncate(complete_bytes)

    def add(self, answers: dict[int, list[Answer]]) -> None:
        """Keep the answers of a batch."""
        self.answers |= answers
        if self.file is not None:
            with open_own(self.file, "a", encoding="utf-8", newline="\n") as f:
                f.write(json.dumps(list(answers.items())) + "\n")


def plan(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split lines into batches of at most ``max_tokens``, including padding; a longer line is a batch by itself.

    Returns:
        batches of indices into ``lengths``, the longest lines first.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def answer_all(
    lines: Iterable[bytes],
    prepare: Callable[[bytes, int], str],
    model: Searcher,
    count: int,
    kept: KeptAnswers,
    *,
    max_tokens: int = MAX_TOKENS,
    advance: Advance = ignore_progress,
) -> Iterator[list[Answer]]:
    """Yield the ``count`` best hypotheses of each line, in order; an empty list for a line without tokens.

    Args:
        lines: the lines of the file.
        prepare: turns a line and its number, counted from 1, into the tokens that the model takes.
        model: the model that translates.
        count: number of hypotheses.
        kept: the answers of an earlier run with the same batches; those of this run are added.
        max_tokens: the largest number of source tokens in a batch.
        advance: is called with the number of lines done since the last call.
    """
    numbered = enumerate(lines, 1)
    while window := list(islice(numbered, WINDOW)):
        sources = {number: source for number, line in window if (source := prepare(line, number)).strip()}
        advance(len(window) - len(sources))
        numbers = list(sources)
        for batch in plan([len(source.split()) for source in sources.values()], max_tokens):
            batch_numbers = [numbers[index] for index in batch]
            if batch_numbers[0] in kept.answers:
                continue
            answers = model.search([sources[number] for number in batch_numbers], count)
            kept.add(dict(zip(batch_numbers, answers, strict=True)))
            advance(len(batch))
        for number, _ in window:
            yield kept.answers.pop(number, [])
