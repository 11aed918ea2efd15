"""Byte-pair encoding: count the words of train on all cores, learn the merges once, then segment every split.

Counting takes memory for the words of a few shards at a time: each group of shards leaves a sorted file, and the files
are merged. Learning holds every word type of train in memory.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from data_prep.dataset import Step
from data_prep.steps.context import Context, learnt_files
from data_prep.steps.pool import tick
from data_prep.steps.registry import APPLY_BPE
from data_prep.steps.shards import Shard, Text, read_chunks
from data_prep.text import bpe
from scripts.common import ownership
from scripts.common.errors import UserError
from scripts.common.files import atomic_file, count_lines, write_lines

_GROUP = 16  # shards counted together
_MERGED = 64  # files open at a time


@dataclass(frozen=True)
class _Task:
    paths: tuple[Path, ...]
    out: Path


def learn(
    context: Context,
    text: Text,
    step: Step,
    *,
    merges: int,
    joint: bool = True,
    glossaries: Sequence[str] = (),
    engine: str = bpe.ENGINES[0],
) -> tuple[Text, list[dict[str, Any]]]:
    """Learn ``merges`` merges on train: of all languages together (``codes``), or of each (``codes.<language>``).

    What one of ``glossaries``, regular expressions, matches stays whole. ``engine`` is what applies the merges.
    """
    log = []
    files = learnt_files("codes", context.languages, joint=joint)
    for file, languages in files.items():
        out = context.work / file
        if out.exists():
            continue
        words = context.path / f"{file}.words"
        if not words.exists():
            _count(context, text.splits["train"], languages, words)
        context.pool.say(
            f"learning {merges:,} BPE merges from {count_lines(words):,} word types of {', '.join(languages)}"
        )
        codes = bpe.learn_from_counts(bpe.outside(read_counts(words), glossaries), merges=merges)
        write_lines(out, codes.strip("\n").split("\n"))
        ownership.remove(words)
    for file, languages in files.items():
        count = count_lines(context.work / file) - 1  # the first line is the format's version
        log.append({"step": step.name, "split": "train", "codes": file, "languages": list(languages), "merges": count})
    return text, log


def check(*, merges: int, joint: bool = True, glossaries: Sequence[str] = (), engine: str = bpe.ENGINES[0]) -> None:
    """Refuse what ``learn`` and the steps after it would fail at.

    Raises:
        UserError: there are no merges to learn, or as ``check_options``.
    """
    if merges < 1:
        raise UserError(f"bpe: merges: got {merges}, expected a number above 0")
    bpe.check_options(glossaries=glossaries, engine=engine)


def apply_steps(step: Step, languages: Sequence[str], work: Path) -> list[Step]:
    """The line-wise steps that segment with what ``learn`` leaves in ``work``."""
    files = learnt_files("codes", languages, joint=step.parameters.get("joint", True))
    options = {key: value for key, value in step.parameters.items() if key in ("glossaries", "engine")}
    return [
        Step(name=APPLY_BPE, languages=of, parameters={"codes": str(work / file), **options})
        for file, of in files.items()
    ]


def _count(context: Context, shards: Sequence[Shard], languages: Sequence[str], out: Path) -> None:
    paths = [shard.path(context.work, language) for shard in shards for language in languages]
    tasks = [
        _Task(tuple(paths[start : start + _GROUP]), out.with_name(f"{out.name}.{start:08}"))
        for start in range(0, len(paths), _GROUP)
    ]
    pending = [task for task in tasks if not task.out.exists()]
    for _ in context.pool.run(_count_group, pending, what=f"counting words of {', '.join(languages)}"):
        pass
    counted = [task.out for task in tasks]
    for path in _merge_down(counted, out):
        ownership.remove(path)


def _count_group(task: _Task) -> None:
    counts: Counter[bytes] = Counter()
    for path in task.paths:
        for chunk in read_chunks(path):
            for line in chunk:
                if b"\r" in line:  # fairseq would break it, and subword-nmt take the word without it for another
                    raise UserError(
                        f"bpe: {'.'.join(path.name.split('.')[:2])}: a carriage return within a line, {line[:80]!r}: "
                        "put the step normalise_space before bpe in the dataset's YAML"
                    )
                counts.update(line.split(b" "))
            tick(len(chunk))
    del counts[b""]
    with atomic_file(task.out, "wb") as f:
        f.writelines(b"%s %d\n" % item for item in sorted(counts.items()))


def _merge_down(paths: list[Path], out: Path) -> list[Path]:
    """Merge sorted files into ``out``, a few at a time; returns all files that are no longer needed."""
    spent = list(paths)
    level = 0
    while len(paths) > _MERGED:
        level += 1
        merged = []
        for start in range(0, len(paths), _MERGED):
            merged.append(out.with_name(f"{out.name}.level{level}.{start:08}"))
            _merge(paths[start : start + _MERGED], merged[-1])
        spent += merged
        paths = merged
    _merge(paths, out)
    return spent


def _merge(paths: Iterable[Path], out: Path) -> None:
    with ExitStack() as stack, atomic_file(out, "wb") as f:
        streams = [_items(stack.enter_context(open(path, "rb"))) for path in paths]
        for word, items in groupby(heapq.merge(*streams), key=lambda item: item[0]):
            f.write(b"%s %d\n" % (word, sum(count for _, count in items)))


def _items(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    for line in lines:
        word, _, count = line.rpartition(b" ")
        yield word, int(count)


def read_counts(path: Path) -> Iterator[tuple[str, int]]:
    """The words and counts of a file that counting wrote."""
    with open(path, "rb") as f:
        for word, count in _items(f):
            yield word.decode(), count
