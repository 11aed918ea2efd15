"""Leave out pairs that occurred before, exactly, in memory that hardly grows with the corpus: one byte a line.

Each shard gives a file of (128-bit hash, place in the split) sorted by hash. Ranges of hashes small enough for memory
are then looked through one after the other, over all these files: pairs with one hash are one pair (that two different
ones meet is as likely as one in 10^23 for 40 million), and all but the first are dropped.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.dataset import Step
from data_prep.steps.context import Context, ShardTask, first_examples
from data_prep.steps.pool import tick
from data_prep.steps.shards import Text
from scripts.common import ownership
from scripts.common.files import atomic_file

_ENTRY = np.dtype([("high", ">u8"), ("low", ">u8"), ("place", "<u8")])
_IN_MEMORY = 2_000_000  # entries of 24 bytes at a time


def deduplicate(context: Context, text: Text, step: Step) -> tuple[Text, list[dict[str, Any]]]:
    """Drop all but the first of equal pairs within each split; order stays."""
    log = []
    for split in step.splits or tuple(text.splits):
        starts, lines = text.starts(split), text.lines(split)
        hashes = {shard: context.path / f"{split}.{shard.number:08}.hashes" for shard in starts}
        dropped = context.path / f"{split}.dropped"
        if starts and not dropped.exists():
            tasks = [context.task(shard, partial(_hash, start=starts[shard], out=out)) for shard, out in hashes.items()]
            pending = [task for task in tasks if not hashes[task.shard].exists()]
            for _ in context.pool.run(ShardTask.run, pending, what=f"{step.name} {split}: hashing", lines=lines):
                pass
            _find(list(hashes.values()), lines, dropped)
        jobs = {shard: partial(_filter, start=start, dropped=dropped) for shard, start in starts.items()}
        text, said = context.rewrite(text, jobs, f"{step.name} {split}")
        for path in hashes.values():
            ownership.remove(path)
        gone = lines - text.lines(split)
        entry = {"step": step.name, "split": split, "in": lines, "out": text.lines(split)}
        examples = first_examples(list(said.values()))
        log.append({**entry, "dropped": {"duplicate": gone} if gone else {}, "examples": examples})
    return text, log


def _hash(task: ShardTask, *, start: int, out: Path) -> None:
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
    entries["place"] = np.arange(start, start + count)
    entries.sort(order=["high", "low", "place"])
    with atomic_file(out, "wb") as f:
        f.write(entries.tobytes())


def _find(hashes: Sequence[Path], lines: int, out: Path) -> None:
    """Write one byte a line: whether it is dropped."""
    dropped = np.zeros(lines, np.bool_)
    files = [np.memmap(path, _ENTRY, "r") for path in hashes]
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
    with atomic_file(out, "wb") as f:
        f.write(dropped.tobytes())


def _filter(task: ShardTask, *, start: int, dropped: Path) -> None:
    gone = iter(np.memmap(dropped, np.bool_, "r")[start : start + task.shard.lines].tolist())
    split = task.shard.split
    task.route([split], lambda blocks: [None if next(gone) else split for _ in blocks[0]])
