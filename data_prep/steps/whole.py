"""Steps that see the whole corpus: hold lines out, split by a hash, drop duplicates, save lines untokenised; and learn
how to cut words into units on train, by BPE or SentencePiece, with the steps that then segment every split.

Each takes the pass and the step, writes what changes, and returns what the log says of each split.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.dataset import SPLITS, Step
from data_prep.steps.corpus import Block, Context, columns_of
from data_prep.text import bpe, sentencepiece
from data_prep.text.clean import normalise_space
from data_prep.text.split import split_of
from scripts.common.errors import UserError
from scripts.common.outputs import atomic_file, open_own

Log = list[dict[str, Any]]
WholeStep = Callable[[Context, Step], Log]

RAW = "raw"
RAW_PREFIX = "raw_"  # of splits whose untokenised text comes as it is: ``raw_test`` is for ``raw/test.<language>``
_PARTS = 16  # of the hashes

APPLY_BPE, APPLY_SENTENCEPIECE = "apply_bpe", "apply_sentencepiece"
LEARNT = {"bpe": "codes", "sentencepiece": "sentencepiece.model"}
"""Files of what is learnt, in the work folder; a language's own has its name at the end, as in ``codes.en``."""
_COUNTED = 20_000  # lines whose words are counted together
_FEW = 200  # lines of a test set: of fewer, BLEU differs by points between samples of one text
_SAMPLE = 1_000_000  # lines that SentencePiece learns from: it keeps them all in memory


def hold_out(*, into: str, every: int) -> WholeStep:
    """Move lines ``every``, 2 * ``every``, ... of a split (counted from 1, over all its sources) to the split ``into``.

    As awk's ``NR % every == 0`` does in the published scripts.
    """
    if every < 2:
        raise UserError(f"hold_out: every: got {every}, expected a number above 1")

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
    if not (min(valid_percent, test_percent) > 0 and valid_percent + test_percent < 100):
        raise UserError(
            f"split_by_hash: valid_percent and test_percent: got {valid_percent} and {test_percent}, expected numbers "
            "above 0 whose sum is below 100"
        )
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
        if min(moved["valid"], moved["test"]) < _FEW:
            context.pool.say(
                f"note: {moved['valid']:,} lines validate and {moved['test']:,} test: too few to tell two models apart "
                f"({_FEW} or more do); give sets of your own, or raise valid_percent and test_percent"
            )
        entry = {"step": step.name, "split": "train", "in": context.text.lines["train"], "out": sum(moved.values())}
        return [{**entry, "dropped": dict(sorted(dropped.items(), reverse=True)), "moved": moved}]

    return run


def deduplicate(context: Context, step: Step) -> Log:
    """Drop all but the first of equal pairs within each split; order stays.

    Pairs with one 128-bit hash are one pair: that two different ones meet is as likely as one in 10^23 for 40 million.
    """
    log = []
    for split in step.splits or tuple(context.text.lines):
        lines, what = context.text.lines[split], f"{step.name} {split}"
        stays = iter(_first_of_equals(context, split, what).tolist())

        def choose(columns: list[list[bytes]], split: str = split, stays: Iterator[bool] = stays) -> list[str | None]:
            return [split if next(stays) else None for _ in columns[0]]

        context.route(split, what, choose)
        gone = lines - context.lines[split]
        entry = {"step": step.name, "split": split, "in": lines, "out": context.lines[split]}
        log.append({**entry, "dropped": {"duplicate": gone} if gone else {}})
    return log


def _first_of_equals(context: Context, split: str, what: str) -> np.ndarray:
    """For each line of a split True, unless it occurred before."""
    hashes, done = np.empty(context.text.lines[split], "S16"), 0
    for found in context.pool.map(_hashes, context.blocks(split, f"{what}: hashing"), what=what):
        here = np.frombuffer(found, "S16")
        hashes[done : done + len(here)] = here
        done += len(here)
    first = np.zeros(len(hashes), np.bool_)
    for part in range(_PARTS):  # sorted one after the other, to take less memory
        places = np.flatnonzero(hashes.view(np.uint8)[::16] % _PARTS == part)
        first[places[np.unique(hashes[places], return_index=True)[1]]] = True
    return first


def _hashes(block: Block) -> bytes:
    return b"".join(_key(b"\n".join(row)) for row in zip(*columns_of(block), strict=True))


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


def learn_bpe(
    *, merges: int, joint: bool = True, glossaries: Sequence[str] = (), engine: str = bpe.ENGINES[0]
) -> WholeStep:
    """Learn ``merges`` merges on train: of all languages together, or of each (not ``joint``).

    What one of ``glossaries``, regular expressions, matches stays whole. ``engine`` is what applies the merges. The
    words of train are counted on all cores; learning holds every word type in memory.
    """
    if merges < 1:
        raise UserError(f"bpe: merges: got {merges}, expected a number above 0")
    bpe.check_engine(engine)

    def learn(context: Context, languages: Sequence[str]) -> bytes:
        words: Counter[bytes] = Counter()
        for language in languages:
            what, name = f"counting words of {language}", f"train.{language}"
            blocks = context.blocks("train", what, languages=(language,), lines=_COUNTED)
            for found in context.pool.map(partial(count_words, name=name), blocks, what=what):
                words.update(found)
        context.pool.say(f"learning {merges:,} BPE merges from {len(words):,} word types of {', '.join(languages)}")
        counts = ((word.decode(), count) for word, count in words.items())
        return bpe.learn_from_counts(bpe.without_glossaries(counts, glossaries), merges=merges).encode()

    return partial(_learn, joint=joint, learn=learn, found=lambda codes: {"merges": bpe.count_merges(codes.decode())})


def count_words(block: Block, *, name: str) -> Counter[bytes]:
    """The words of some lines of the file ``name``."""
    (lines,) = block
    if b"\r" in lines:  # fairseq would break it, and subword-nmt take the word without it for another
        line = next(line for line in lines.split(b"\n") if b"\r" in line)
        raise UserError(
            f"bpe: {name}: a carriage return within a line, {line[:80]!r}: put the step normalise_space before bpe in "
            "the dataset's YAML"
        )
    counts = Counter(lines.replace(b"\n", b" ").split(b" "))
    del counts[b""]
    return counts


def learn_sentencepiece(*, units: int, joint: bool = True, fewer: bool = False) -> WholeStep:
    """Learn ``units`` units on a sample of train: of all languages together, or of each (not ``joint``).

    With ``fewer``, a small text that has no room for so many gets as many as it has room for.
    """
    if units < 1:
        raise UserError(f"sentencepiece: units: got {units}, expected a number above 0")
    sentencepiece.package()

    def learn(context: Context, languages: Sequence[str]) -> bytes:
        context.pool.say(f"learning {units:,} units of {', '.join(languages)} with sentencepiece")
        every = -(-context.text.lines["train"] * len(languages) // _SAMPLE)
        try:
            return sentencepiece.learn(_sample(context, languages, every), units=units)
        except sentencepiece.TooManyUnits as error:
            if not fewer:
                raise
            context.pool.say(f"this text has room for {error.limit:,} units: so many are learnt, and not {units:,}")
            return sentencepiece.learn(_sample(context, languages, every), units=error.limit)

    return partial(_learn, joint=joint, learn=learn, found=lambda model: {"units": sentencepiece.count_units(model)})


def _sample(context: Context, languages: Sequence[str], every: int) -> Iterator[str]:
    """Every ``every``-th line, all over train."""
    for language in languages:
        number = 0
        for block in context.blocks("train", f"reading {language}", languages=(language,)):
            (lines,) = columns_of(block)
            yield from (line.decode() for line in lines[-number % every :: every])
            number += len(lines)


def _learn(
    context: Context,
    step: Step,
    *,
    joint: bool,
    learn: Callable[[Context, Sequence[str]], bytes],
    found: Callable[[bytes], dict[str, int]],
) -> Log:
    """Learn each file; the log has what is ``found`` in it."""
    log = []
    for file, languages in _files(step.name, context.languages, joint=joint).items():
        learnt = learn(context, languages)
        with atomic_file(context.work / file, "wb") as f:
            f.write(learnt)
        entry = {"step": step.name, "split": "train", "codes": file, "languages": list(languages)}
        log.append(entry | found(learnt))
    return log


def apply_steps(step: Step, languages: Sequence[str], work: Path) -> list[Step]:
    """The line-wise steps that segment with what ``step`` learns."""
    options = {key: value for key, value in step.parameters.items() if key in ("glossaries", "engine")}
    files = _files(step.name, languages, joint=step.parameters.get("joint", True))
    apply = APPLY_BPE if step.name == "bpe" else APPLY_SENTENCEPIECE
    return [
        Step(name=apply, splits=step.splits, languages=of, parameters={"codes": str(work / file), **options})
        for file, of in files.items()
    ]


def _files(step: str, languages: Sequence[str], *, joint: bool) -> dict[str, tuple[str, ...]]:
    """The files of what a step learns, with the languages that each is for."""
    name = LEARNT[step]
    return {name: tuple(languages)} if joint else {f"{name}.{language}": (language,) for language in languages}
