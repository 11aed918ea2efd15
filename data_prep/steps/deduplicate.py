"""Leave out pairs that occurred before, exactly, in memory that hardly grows with the corpus: one byte a line.

Each shard gives a file of (128-bit hash, place in the split) sorted by hash. Ranges of hashes small enough for memory
are then looked through one after the other, over all these files: pairs with one hash are one pair (that two different
ones meet is as likely as one in 10^23 for 40 million), and all but the first are dropped.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.dataset import Step
from data_prep.steps.context import Context, ShardTask
from data_prep.steps.linewise import first_examples
from data_prep.steps.pool import tick
from data_prep.steps.shards import Text
from scripts.common import ownership
from scripts.common.files import atomic_file

_ENTRY = np.dtype([("high", ">u8"), ("low", ">u8"), ("place", "<u8")])
_IN_MEMORY = 2_000_000  # entries of 24 bytes at a time


@dataclass(frozen=True)
class _Task(ShardTask):
    start: int  # lines of the split before this shard

    @property
    def hashes(self) -> Path:
        return self.work / self.folder / f"{self.shard.split}.{self.shard.number:08}.hashes"

    @property
    def dropped(self) -> Path:
        return self.work / self.folder / f"{self.shard.split}.dropped"


def deduplicate(context: Context, text: Text, step: Step) -> tuple[Text, list[dict[str, Any]]]:
    """Drop all but the first of equal pairs within each split; order stays."""
    log = []
    for split in step.splits or tuple(text.splits):
        tasks, start = [], 0
        for shard in text.splits[split]:
            tasks.append(_Task(shard, context.folder, context.work, context.languages, start))
            start += shard.lines
        if tasks and not tasks[0].dropped.exists():
            pending = [task for task in tasks if not task.hashes.exists()]
            for _ in context.pool.run(_hash, pending, what=f"{step.name} {split}: hashing", lines=start):
                pass
            _find(tasks, start)
        by_shard = {task.shard: task for task in tasks}
        new, said = context.rewrite(text, text.splits[split], by_shard.__getitem__, _filter, f"{step.name} {split}")
        for task in tasks:
            ownership.remove(task.hashes)
        gone = start - new.lines(split)
        entry = {"step": step.name, "split": split, "in": start, "out": new.lines(split)}
        examples = first_examples(said[task.shard] for task in tasks)
        log.append({**entry, "dropped": {"duplicate": gone} if gone else {}, "examples": examples})
        text = new
    return text, log


def _hash(task: _Task) -> None:
    entries = np.empty(task.shard.lines, _ENTRY)
    count = 0
    for blocks in task.blocks():
        digests = b"".join(
            hashlib.blake2b(b"\n".join(row), digest_size=16).digest() for row in zip(*blocks, strict=True)
        )
        halves = np.frombuffer(digests, ">u8").reshape(-1, 2)
        block = entries[count : count + len(halves)]
        block["high"], block["low"] = halves[:, 0], halves[:, 1]
        count += len(halves)
        tick(len(halves))
    entries["place"] = np.arange(task.start, task.start + count)
    entries.sort(order=["high", "low", "place"])
    with atomic_file(task.hashes, "wb") as f:
        f.write(entries.tobytes())


def _find(tasks: list[_Task], lines: int) -> None:
    """Write one byte a line: whether it is dropped."""
    dropped = np.zeros(lines, np.bool_)
    files = [np.memmap(task.hashes, _ENTRY, "r") for task in tasks]
    ranges = -(-lines // _IN_MEMORY)
    edges = [place * (2**64 // ranges) for place in range(1, ranges)]
    starts = [0] * len(files)
    for edge in [*edges, None]:
        ends = [len(file) if edge is None else int(np.searchsorted(file["high"], np.uint64(edge))) for file in files]
        entries = np.concatenate([file[start:end] for file, start, end in zip(files, starts, ends, strict=True)])
        entries.sort(order=["high", "low", "place"])
        again = (entries["high"][1:] == entries["high"][:-1]) & (entries["low"][1:] == entries["low"][:-1])
        dropped[entries["place"][1:][again]] = True
        starts = ends
    with atomic_file(tasks[0].dropped, "wb") as f:
        f.write(dropped.tobytes())


def _filter(task: _Task) -> None:
    dropped = iter(np.memmap(task.dropped, np.bool_, "r")[task.start : task.start + task.shard.lines].tolist())
    split = task.shard.split
    task.route([split], lambda blocks: [None if next(dropped) else split for _ in blocks[0]])
