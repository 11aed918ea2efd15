"""Split a corpus: every n-th line into another split, or by a hash of the line, so that splits stay put as it grows."""

import hashlib
from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Step
from data_prep.steps.context import Context, CorpusStep, ShardTask
from data_prep.steps.shards import Text, read_chunks
from data_prep.text.split import split_of
from scripts.common.errors import UserError


def hold_out(*, into: str, every: int) -> CorpusStep:
    """Move lines ``every``, 2 * ``every``, ... of a split (counted from 1, over all its sources) to the split ``into``.

    As awk's ``NR % every == 0`` does in the published scripts.
    """
    if every < 2:
        raise UserError(f"hold_out: every: got {every}, expected a number above 1")

    def run(context: Context, text: Text, step: Step) -> tuple[Text, list[dict[str, Any]]]:
        (split,) = step.splits
        if into in text.splits:
            raise UserError(f"{step.name}: the split {into} is there already; give `into` another name")
        starts, lines = text.starts(split), text.lines(split)
        jobs = {shard: partial(_every, start=start, into=into, every=every) for shard, start in starts.items()}
        new, _ = context.rewrite(text, jobs, f"{step.name} {split}")
        moved = {name: new.lines(name) for name in (split, into) if name in new.splits}
        return new, [{"step": step.name, "split": split, "in": lines, "out": lines, "moved": moved}]

    return run


def _every(task: ShardTask, *, start: int, into: str, every: int) -> None:
    numbers, split = count(start + 1), task.shard.split
    task.route([split, into], lambda blocks: [into if next(numbers) % every == 0 else split for _ in blocks[0]])


def split_by_hash(*, by: str, valid_percent: int, test_percent: int) -> CorpusStep:
    """Split ``train`` into train, valid and test by the MD5 of each pair's lower-cased line of the language ``by``.

    No sentence, whatever its case, is in two splits: the hash sees to that for one side. Of the other side, where two
    sentences share a translation, the pair stays in test before valid before train. Memory: about 100 bytes a worker
    for each line of valid and test. Where the text came with valid and test sets of its own, nothing happens.
    """
    if not (min(valid_percent, test_percent) > 0 and valid_percent + test_percent < 100):
        raise UserError(
            f"split_by_hash: valid_percent and test_percent: got {valid_percent} and {test_percent}, expected numbers "
            "above 0 whose sum is below 100"
        )
    return partial(_split_by_hash, by=by, valid_percent=valid_percent, test_percent=test_percent)


def _split_by_hash(
    context: Context, text: Text, step: Step, *, by: str, valid_percent: int, test_percent: int
) -> tuple[Text, list[dict[str, Any]]]:
    if set(SPLITS) <= set(text.splits):
        return text, []
    side = context.languages.index(by)
    before = text.lines("train")
    route = partial(_route, side=side, valid_percent=valid_percent, test_percent=test_percent)
    text, _ = context.rewrite(text, dict.fromkeys(text.splits["train"], route), step.name)
    text = text.replace({split: text.splits.get(split, ()) for split in SPLITS})
    dropped: Counter[str] = Counter()
    if len(context.languages) > 1:
        other = context.languages[1 - side]
        taken: list[Path] = [shard.path(context.work, other) for shard in text.splits["test"]]
        for split in ("valid", "train"):
            apart = replace(context, folder=f"{context.folder}-{split}")
            keep_apart = partial(_keep_apart, side=1 - side, taken=tuple(taken))
            after, _ = apart.rewrite(text, dict.fromkeys(text.splits[split], keep_apart), f"{step.name} {split}")
            if gone := text.lines(split) - after.lines(split):
                dropped[f"{split}: its translation is in another split"] += gone
            text = after
            taken += [shard.path(context.work, other) for shard in text.splits[split]]
    moved = {split: text.lines(split) for split in SPLITS}
    entry = {"step": step.name, "split": "train", "in": before, "out": sum(moved.values()), "dropped": dict(dropped)}
    return text, [{**entry, "moved": moved}]


def _route(task: ShardTask, *, side: int, valid_percent: int, test_percent: int) -> None:
    split = partial(split_of, valid_percent=valid_percent, test_percent=test_percent)
    task.route(SPLITS, lambda blocks: [split(line.decode()) for line in blocks[side]])


def _keep_apart(task: ShardTask, *, side: int, taken: tuple[Path, ...]) -> None:
    keys, split = _keys(taken), task.shard.split
    task.route([split], lambda blocks: [None if _key(line) in keys else split for line in blocks[side]])


@lru_cache(maxsize=1)  # the same for all shards of a split
def _keys(paths: tuple[Path, ...]) -> frozenset[bytes]:
    return frozenset(_key(line) for path in paths for chunk in read_chunks(path) for line in chunk)


def _key(line: bytes) -> bytes:
    return hashlib.blake2b(line.decode().lower().encode(), digest_size=16).digest()
