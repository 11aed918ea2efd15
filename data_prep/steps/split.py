"""Part a corpus: every n-th line into another part, or by a hash of the line, so that parts stay put as it grows."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Step
from data_prep.steps.context import Blocks, Context, ShardTask
from data_prep.steps.shards import Shard, Text, read_chunks
from data_prep.text.split import part_of
from scripts.common.errors import UserError


@dataclass(frozen=True)
class _EveryTask(ShardTask):
    start: int  # lines of the part before this shard
    into: str
    every: int


def hold_out(context: Context, text: Text, step: Step, *, into: str, every: int) -> tuple[Text, list[dict[str, Any]]]:
    """Move lines ``every``, 2 * ``every``, ... of a part (counted from 1, over all its sources) to the part ``into``.

    As awk's ``NR % every == 0`` does in the published scripts.
    """
    (part,) = step.parts
    if into in text.parts:
        raise UserError(f"{step.name}: the part {into} is there already; give `into` another name")
    starts, start = {}, 0
    for shard in text.parts[part]:
        starts[shard] = start
        start += shard.lines

    def make(shard: Shard) -> _EveryTask:
        return _EveryTask(shard, context.folder, context.work, context.languages, starts[shard], into, every)

    new, _ = context.rewrite(text, text.parts[part], make, _every, f"{step.name} {part}")
    moved = {name: new.lines(name) for name in (part, into) if name in new.parts}
    return new, [{"step": step.name, "part": part, "in": start, "out": start, "moved": moved}]


def _every(task: _EveryTask) -> None:
    numbers, part = count(task.start + 1), task.shard.part
    task.route(
        [part, task.into],
        lambda blocks: [task.into if next(numbers) % task.every == 0 else part for _ in blocks[0]],
    )


@dataclass(frozen=True)
class _HashTask(ShardTask):
    side: int
    valid_percent: int
    test_percent: int


@dataclass(frozen=True)
class _ApartTask(ShardTask):
    side: int
    taken: tuple[Path, ...]


def check_every(*, into: str, every: int) -> None:
    """Refuse what ``hold_out`` would fail at.

    Raises:
        UserError: it would take no line, or all of them.
    """
    if every < 2:
        raise UserError(f"hold_out: every: got {every}, expected a number above 1")


def check_percent(*, by: str, valid_percent: int, test_percent: int) -> None:
    """Refuse what ``split_by_hash`` would fail at.

    Raises:
        UserError: a part would be left empty.
    """
    if not (min(valid_percent, test_percent) > 0 and valid_percent + test_percent < 100):
        raise UserError(
            f"split_by_hash: valid_percent and test_percent: got {valid_percent} and {test_percent}, expected numbers "
            "above 0 whose sum is below 100"
        )


def split_by_hash(
    context: Context, text: Text, step: Step, *, by: str, valid_percent: int, test_percent: int
) -> tuple[Text, list[dict[str, Any]]]:
    """Part ``train`` into train, valid and test by the MD5 of each pair's lower-cased line of the language ``by``.

    No sentence, whatever its case, is in two parts: the hash sees to that for one side. Of the other side, where two
    sentences share a translation, the pair stays in test before valid before train. Memory: about 100 bytes a worker
    for each line of valid and test. Where the text came with valid and test sets of its own, nothing happens.
    """
    if set(SPLITS) <= set(text.parts):
        return text, []
    side = context.languages.index(by)
    before = text.lines("train")

    def route(shard: Shard) -> _HashTask:
        return _HashTask(shard, context.folder, context.work, context.languages, side, valid_percent, test_percent)

    text, _ = context.rewrite(text, text.parts["train"], route, _route, f"{step.name}")
    text = text.replace({part: text.parts.get(part, ()) for part in SPLITS})
    dropped: Counter[str] = Counter()
    if len(context.languages) > 1:
        other = context.languages[1 - side]
        taken: list[Path] = [shard.path(context.work, other) for shard in text.parts["test"]]
        for part in ("valid", "train"):
            apart = replace(context, folder=f"{context.folder}-{part}")
            before_part = text.parts[part]

            def check(shard: Shard, folder: str = apart.folder, paths: tuple[Path, ...] = tuple(taken)) -> _ApartTask:
                return _ApartTask(shard, folder, context.work, context.languages, 1 - side, paths)

            after, _ = apart.rewrite(text, before_part, check, _keep_apart, f"{step.name} {part}")
            if gone := text.lines(part) - after.lines(part):
                dropped[f"{part}: its translation is in another part"] += gone
            text = after
            taken += [shard.path(context.work, other) for shard in text.parts[part]]
    after_all = sum(text.lines(part) for part in SPLITS)
    moved = {part: text.lines(part) for part in SPLITS}
    entry = {"step": step.name, "part": "train", "in": before, "out": after_all, "dropped": dict(dropped)}
    return text, [{**entry, "moved": moved}]


def _route(task: _HashTask) -> None:
    def parts(blocks: Blocks) -> list[str]:
        percent = {"valid_percent": task.valid_percent, "test_percent": task.test_percent}
        return [part_of(line.decode(), **percent) for line in blocks[task.side]]

    task.route(SPLITS, parts)


def _keep_apart(task: _ApartTask) -> None:
    taken, part = _keys(task.taken), task.shard.part
    task.route([part], lambda blocks: [None if _key(line) in taken else part for line in blocks[task.side]])


@lru_cache(maxsize=1)  # the same for all shards of a part
def _keys(paths: tuple[Path, ...]) -> frozenset[bytes]:
    return frozenset(_key(line) for path in paths for chunk in read_chunks(path) for line in chunk)


def _key(line: bytes) -> bytes:
    return hashlib.blake2b(line.decode().lower().encode(), digest_size=16).digest()
