"""Steps on the whole corpus that choose lines: hold_out, split_by_hash, deduplicate, save_raw."""

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
RAW_PREFIX = "raw_"  # of splits whose untokenised text is in the archives: ``raw_test`` becomes ``raw/test.<language>``


def hold_out(*, into: str, every: int) -> WholeStep:
    """Move lines ``every``, 2 * ``every``, ... of a split to the split ``into``.

    Lines are counted from 1, over all sources of the split, as by awk's ``NR % every == 0`` in the published scripts.
    """

    def run(context: Context, step: Step) -> Log:
        (split,) = step.splits
        if into in context.text.lines:
            raise UserError(f"{step.name}: the split {into} exists already; give `into` another name")
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

    No sentence is in two splits, in either language and whatever its case. In the language ``by``, the hash ensures
    that. In the other language, of pairs that share a line but are in different splits, those in test stay, and those
    in train are dropped before those in valid. Memory: about 100 bytes for each line of valid and test. If the text has
    valid and test sets already, the step does nothing.
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
            for index, line in enumerate(columns[1 - side] if len(columns) > 1 else ()):
                split, key = chosen[index], _key(line.decode().lower().encode())
                if split != "test" and (key in held_out["test"] or (split == "train" and key in held_out["valid"])):
                    chosen[index] = None
                    dropped[f"{split}: its translation is in another split"] += 1
            return chosen

        if len(context.languages) > 1:
            for block in context.blocks("train", step.name):
                columns = columns_of(block)
                for line, translation in zip(columns[side], columns[1 - side], strict=True):
                    if (split := split_by(line.decode())) != "train":
                        held_out[split].add(_key(translation.decode().lower().encode()))
        for split in SPLITS:
            context.write(split)
        context.route("train", step.name, choose)
        moved = dict(context.lines)
        entry = {"step": step.name, "split": "train", "in": context.text.lines["train"], "out": sum(moved.values())}
        return [{**entry, "dropped": dict(sorted(dropped.items(), reverse=True)), "moved": moved}]

    return run


def deduplicate(context: Context, step: Step) -> Log:
    """Keep only the first of equal pairs within each split, in order.

    Pairs are compared by a 128-bit hash. For 40 million pairs, the probability that any two different pairs have the
    same hash is about 10^-23.
    """
    log = []
    for split in step.splits or tuple(context.text.lines):
        seen: set[bytes] = set()

        def choose(columns: list[list[bytes]], split: str = split, seen: set[bytes] = seen) -> list[str | None]:
            chosen: list[str | None] = []
            for row in zip(*columns, strict=True):
                number = len(seen)
                seen.add(_key(b"\n".join(row)))
                chosen.append(split if len(seen) > number else None)
            return chosen

        context.route(split, f"{step.name} {split}", choose)
        lines_in, lines_out = context.text.lines[split], context.lines[split]
        dropped = {"duplicate": lines_in - lines_out} if lines_out < lines_in else {}
        log.append({"step": step.name, "split": split, "in": lines_in, "out": lines_out, "dropped": dropped})
    return log


def _key(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def save_raw(context: Context, step: Step) -> Log:
    """Copy splits, valid and test by default, to ``raw/<split>.<language>`` in the prepared folder: the references.

    Sequences of spaces of all kinds become one plain space. Nothing else changes: ``&amp;`` of an SGM file stays, as in
    sacreBLEU's copies of the published test sets; sacreBLEU's tokeniser 13a replaces it on both sides.

    No later step may drop lines of these splits, since references and text must stay aligned; ``Engine.finish`` checks
    that.
    """
    log = []
    for split in step.splits or ("valid", "test"):
        if split not in context.text.lines:
            raise UserError(f"{step.name}: the split {split} does not exist; give more text, or {split} itself")
        for language in context.languages:
            with open_own(context.work / RAW / f"{split}.{language}", "wb") as f:
                for block in context.blocks(split, step.name, languages=(language,)):
                    f.writelines(normalise_space(line.decode()).encode() + b"\n" for line in columns_of(block)[0])
        lines = context.text.lines[split]
        log.append({"step": step.name, "split": split, "in": lines, "out": lines})
    return log


def held_out_in_train(context: Context) -> dict[str, dict[str, int]]:
    """Count the lines of valid and test that also occur in train. Case and spaces are ignored, as are empty lines.

    Returns:
        for each of these splits that has such lines, their number by language and, if there are two languages, the
        number of ``pairs``.
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
        in_train.update(*context.pool.map(keys_of, context.blocks("train", title), title=title))
    names = [*context.languages, "pairs"] if len(context.languages) > 1 else context.languages
    counts = {
        split: {name: sum(row[column] in in_train for row in keys) for column, name in enumerate(names)}
        for split, keys in rows.items()
    }
    return {split: numbers for split, numbers in counts.items() if any(numbers.values())}


def _row_keys(block: Block) -> list[list[bytes]]:
    """Return the keys of each row: one for each language's line and one for the pair; ``b""`` for an empty line."""
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
