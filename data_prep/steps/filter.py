"""Steps that choose lines of the whole corpus: hold some out, split by a hash, drop duplicates, save them raw."""

import hashlib
from collections import Counter
from functools import partial
from itertools import count

from data_prep.common.errors import UserError
from data_prep.common.outputs import open_own
from data_prep.dataset import SPLITS, Step
from data_prep.steps.corpus import Block, Context, Log, WholeStep, columns_of
from data_prep.text.clean import normalise_space
from data_prep.text.split import split_of

RAW = "raw"
RAW_PREFIX = "raw_"  # of splits whose untokenised text comes as it is: ``raw_test`` is for ``raw/test.<language>``


def hold_out(*, into: str, every: int) -> WholeStep:
    """Move lines ``every``, 2 * ``every``, ... of a split (counted from 1, over all its sources) to the split ``into``.

    As awk's ``NR % every == 0`` does in the published scripts.
    """

    def run(context: Context, step: Step) -> Log:
        (split,) = step.splits
        if into in context.text.lines:
            raise UserError(f"{step.name}: the split {into} is there already; give `into` another name")
        numbers, lines = count(1), context.text.lines[split]
        context.route(
            split,
            f"{step.name} {split}",
            lambda columns: [into if next(numbers) % every == 0 else split for _ in columns[0]],
        )
        return [{"step": step.name, "split": split, "in": lines, "out": lines, "moved": dict(context.lines)}]

    return run


def split_by_hash(*, by: str, valid_percent: int, test_percent: int) -> WholeStep:
    """Split ``train`` into train, valid and test by the MD5 of each pair's lower-cased line of the language ``by``.

    No sentence, whatever its case, is in two splits: the hash sees to that for one side. Of the other side, where two
    sentences share a translation, the pair stays in test before valid before train. Memory: about 100 bytes for each
    line of valid and test. Where the text came with valid and test sets of its own, nothing happens.
    """
    split_by = partial(split_of, valid_percent=valid_percent, test_percent=test_percent)

    def run(context: Context, step: Step) -> Log:
        if set(SPLITS) <= set(context.text.lines):
            return []
        side = context.languages.index(by)
        held_out: dict[str, set[bytes]] = {"valid": set(), "test": set()}  # hashes of the other side
        dropped: Counter[str] = Counter()

        def choose(columns: list[list[bytes]]) -> list[str | None]:
            chosen: list[str | None] = [split_by(line.decode()) for line in columns[side]]
            for place, line in enumerate(columns[1 - side] if len(columns) > 1 else ()):
                split, key = chosen[place], _key(line.decode().lower().encode())
                if split != "test" and (key in held_out["test"] or (split == "train" and key in held_out["valid"])):
                    chosen[place] = None
                    dropped[f"{split}: its translation is in another split"] += 1
            return chosen

        if len(context.languages) > 1:
            for block in context.blocks("train", step.name):
                columns = columns_of(block)
                for line, other in zip(columns[side], columns[1 - side], strict=True):
                    if (split := split_by(line.decode())) != "train":
                        held_out[split].add(_key(other.decode().lower().encode()))
        for split in SPLITS:
            context.write(split)
        context.route("train", step.name, choose)
        moved = dict(context.lines)
        entry = {"step": step.name, "split": "train", "in": context.text.lines["train"], "out": sum(moved.values())}
        return [{**entry, "dropped": dict(sorted(dropped.items(), reverse=True)), "moved": moved}]

    return run


def deduplicate(context: Context, step: Step) -> Log:
    """Drop all but the first of equal pairs within each split; order stays.

    Pairs with one 128-bit hash are one pair: that two different ones meet is as likely as one in 10^23 for 40 million.
    """
    log = []
    for split in step.splits or tuple(context.text.lines):
        seen: set[bytes] = set()

        def choose(columns: list[list[bytes]], split: str = split, seen: set[bytes] = seen) -> list[str | None]:
            chosen: list[str | None] = []
            for row in zip(*columns, strict=True):
                before = len(seen)
                seen.add(_key(b"\n".join(row)))
                chosen.append(split if len(seen) > before else None)
            return chosen

        context.route(split, f"{step.name} {split}", choose)
        lines, left = context.text.lines[split], context.lines[split]
        dropped = {"duplicate": lines - left} if left < lines else {}
        log.append({"step": step.name, "split": split, "in": lines, "out": left, "dropped": dropped})
    return log


def _key(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def save_raw(context: Context, step: Step) -> Log:
    """Copy splits (none named: valid and test) to ``raw/<split>.<language>`` of what preparation writes.

    Spaces of all kinds become single plain ones, and nothing else changes: what an SGM file writes ``&amp;`` stays so.
    That is what sacreBLEU makes of the published test sets; its tokeniser 13a undoes it on both sides.

    No later step may drop lines of them, or line n would no longer be line n; that is checked at the end.
    """
    log = []
    for split in step.splits or ("valid", "test"):
        if split not in context.text.lines:
            raise UserError(f"{step.name}: there are no lines of {split}; give more text, or {split} itself")
        for language in context.languages:
            with open_own(context.work / RAW / f"{split}.{language}", "wb") as f:
                for block in context.blocks(split, step.name, languages=(language,)):
                    f.writelines(normalise_space(line.decode()).encode() + b"\n" for line in columns_of(block)[0])
        lines = context.text.lines[split]
        log.append({"step": step.name, "split": split, "in": lines, "out": lines})
    return log


def held_out_in_train(context: Context) -> dict[str, dict[str, int]]:
    """Count the lines of valid and test that stand in train, too, whatever their case and spaces; not empty lines.

    Returns:
        for each of these splits that has such lines, their number by language; and that of whole ``pairs``, if there
        are two languages.
    """
    if "train" not in context.text.lines:
        return {}
    splits = [split for split in SPLITS[1:] if split in context.text.lines]
    rows = {split: [row for block in context.blocks(split, split) for row in _row_keys(block)] for split in splits}
    held_out = {key for keys in rows.values() for row in keys for key in row if key}
    in_train: set[bytes] = set()
    if held_out:
        title = "comparing with valid and test"
        keys_of = partial(_keys_among, held_out=held_out)
        in_train.update(*context.pool.map(keys_of, context.blocks("train", title), what=title))
    names = [*context.languages, "pairs"] if len(context.languages) > 1 else context.languages
    counts = {
        split: {name: sum(row[place] in in_train for row in keys) for place, name in enumerate(names)}
        for split, keys in rows.items()
    }
    return {split: numbers for split, numbers in counts.items() if any(numbers.values())}


def _row_keys(block: Block) -> list[list[bytes]]:
    """The keys of each row: one of its line in each language, and one of all together; ``b""`` for an empty line."""
    columns = [[normalise_space(line.decode()).lower() for line in column] for column in columns_of(block)]
    return [
        [
            *(_key(f"{side}\n{line}".encode()) if line else b"" for side, line in enumerate(row)),
            _key("\n".join(["", *row]).encode()) if all(row) else b"",
        ]
        for row in zip(*columns, strict=True)
    ]


def _keys_among(block: Block, *, held_out: set[bytes]) -> set[bytes]:
    return held_out.intersection(key for row in _row_keys(block) for key in row)
