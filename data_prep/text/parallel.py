"""Pairs of lines from two languages of a document: alignment, cleaning, and a split by source package."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from data_prep.text.clean import count_words, pair_filter
from data_prep.text.documents import HEADS, Block, words
from data_prep.text.split import split_of

Pair = tuple[str, str]
LARGEST = 0.02
"""A source that is more than this share of all pairs trains."""
MOST_OF_SOURCE = 150
MOST = 2000
MIN_WORDS = 5  # of a pair that is held out
SHARED = 0.6
"""The share of its runs of four words, on either side, that a line held out may not have in common with train."""


class Row(NamedTuple):
    """A pair and where it is from: the source package, the kind of file, and whether it may be held out."""

    source: str
    kind: str
    exact: bool
    pair: Pair


def align(left: Sequence[Block], right: Sequence[Block]) -> tuple[list[Pair], bool] | None:
    """Return the blocks of sections with equal tags, and whether all are; None where numbers say they do not belong."""
    sections = _sections(left), _sections(right)
    if len(sections[0]) != len(sections[1]):
        return None
    pairs: list[Pair] = []
    exact = True
    for one, other in zip(*sections, strict=True):
        if [tag for tag, _ in one] == [tag for tag, _ in other]:
            pairs += [(a, b) for (_, a), (_, b) in zip(one, other, strict=True)]
        else:
            exact = False
    with_numbers = [(a, b) for a, b in ((_numbers(a), _numbers(b)) for a, b in pairs) if a or b]
    wrong = sum(not a & b for a, b in with_numbers)
    if len(with_numbers) >= 4 and wrong > 0.2 * len(with_numbers):
        return None
    return pairs, exact


def _sections(blocks: Sequence[Block]) -> list[Sequence[Block]]:
    starts = [place for place, (tag, _) in enumerate(blocks) if tag in HEADS]
    return [blocks[start:end] for start, end in pairwise([0, *starts, len(blocks)])]


def _numbers(line: str) -> set[str]:
    return set(re.findall(r"\d{2,}", line))


_INVISIBLE = dict.fromkeys((0xAD, 0x200B, 0xFEFF, 0))
_STRAY = re.compile(r" ([,.;:!?])(?=\s|$)")  # a space that markup leaves behind
_STRAY_IN_FRENCH = re.compile(r" ([,.])(?=\s|$)")  # before the other signs French has one
_END = re.compile(r"(?<=[.!?])[\"”“’»)\]]*\s+(?=[\"“„«(\[]*[A-ZÄÖÜÀÉÈÊÎÔÇ])|(?<=[。！？])")
_ABBREVIATED = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|z\. ?B|d\. ?h|u\. ?a|bzw|ca|Nr|No|St|Dr|Mrs?|usw|evtl|ggf|vgl|p\. ?ex|resp|Fig|"
    r"approx|max|min|inkl|sog)|\b[A-Z]|\b\d+)\.$"
)


def sentences(english: str, other: str, *, language: str) -> Iterator[Pair]:
    """Yield a block's sentences one by one if both sides have as many of like lengths; else the block as it is."""
    sides = [_sentences(english, _STRAY), _sentences(other, _STRAY_IN_FRENCH if language == "fr" else _STRAY)]
    even = len(sides[0]) == len(sides[1])
    if even and all(count_words(a) < 3 * count_words(b) + 5 for a, b in zip(*sides, strict=True)):
        yield from zip(*sides, strict=True)
    else:
        yield " ".join(sides[0]), " ".join(sides[1])


def _sentences(text: str, stray: re.Pattern[str]) -> list[str]:
    line = stray.sub(r"\1", " ".join(text.translate(_INVISIBLE).split()))
    found, start = [], 0
    for end in _END.finditer(line):
        if not _ABBREVIATED.search(line[max(0, end.start() - 12) : end.start()]):
            found.append(line[start : end.end()].strip())
            start = end.end()
    return [each for each in (*found, line[start:].strip()) if each]


_LETTER = re.compile(r"[^\W\d_]")
_HAN = re.compile(r"[\u3400-\u9fff]")
_ENGLISH = words("the of and to is for with this are be that from it you your can or if by not")
_COUNTED = pair_filter(min_words=3, max_words=100, max_ratio=2.5)


def fault(english: str, other: str, *, language: str) -> str | None:
    """Return why a pair is dropped, or None."""
    other = _STRAY.sub(r"\1", other)  # a sign that stands alone, as in French, is no word
    if (counted := _COUNTED(english, other)) is not None:
        return counted
    for line in (english, other):
        if len(_LETTER.findall(line)) < 0.55 * len(line.replace(" ", "")):
            return "more signs than letters"
    if language.startswith("zh") and not _HAN.search(other):
        return "not translated"
    found = re.findall(r"[^\W_]+", other.lower())
    same = sum(word in english.lower().split() for word in other.lower().split())
    known = sum(word in _ENGLISH for word in found)
    if same > 0.65 * len(other.split()) or (known > 1 and known > 0.15 * len(found)):
        return "not translated"
    numbers = _numbers(english), _numbers(other)
    if not numbers[0] & numbers[1] and (all(numbers) or max(map(len, numbers)) > 1):
        return "other numbers"
    return None


_PLACEHOLDER = re.compile(r"%(?:\d+\$)?[-+#0 ]*\d*(?:\.\d+)?[hlLqzw]*[a-zA-Z%]|%\d+|\$?\{\w*\}|\$\w+|@\w+|\d+")


def plain(line: str) -> str:
    """Return what near-duplicates share: words in lower case, figures and placeholders as 0, no signs."""
    return " ".join(re.sub(r"[\W_]+", " ", _PLACEHOLDER.sub("0", line.lower())).split())


def split_by_source(
    rows: Iterable[Row], *, valid_percent: int, test_percent: int, report: Counter[str]
) -> Iterator[tuple[str, Pair]]:
    """Yield each pair with its split, the source package's; near-duplicates and what is too like train left out."""
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    most = LARGEST * sum(map(len, by_source.values()))
    parts: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    for source in sorted(by_source):
        split = split_of(source, valid_percent=valid_percent, test_percent=test_percent)
        parts["train" if len(by_source[source]) > most else split] += by_source[source]
    seen: set[Pair] = set()
    for split, part in parts.items():
        parts[split] = []
        for row in part:
            key = plain(row.pair[0]), plain(row.pair[1])
            if key in seen:
                report["near-duplicates"] += 1
            else:
                seen.add(key)
                parts[split].append(row)
    report.update(f"train: {row.kind}" for row in parts["train"])
    yield from (("train", row.pair) for row in parts["train"])
    for split, others in (("valid", parts["train"]), ("test", parts["train"] + parts["valid"])):
        yield from ((split, row.pair) for row in _apart(parts[split], others, split, report))


def _apart(rows: Sequence[Row], others: Sequence[Row], split: str, report: Counter[str]) -> Iterator[Row]:
    """Yield the lines of a split that are not in the others, on either side and nearly; at most MOST in all."""
    taken = [{plain(row.pair[side]) for row in others} for side in (0, 1)]
    runs_here = {run for row in rows for side in row.pair for run in _runs(side)}
    shared = {run for row in others for side in row.pair for run in _runs(side) if run in runs_here}
    counts: Counter[str] = Counter()
    # in the order of a hash: any part of a package, and the same whatever other packages there are
    for row in sorted(rows, key=lambda row: hashlib.md5("\n".join(row.pair).encode(), usedforsecurity=False).digest()):
        if not row.exact or count_words(row.pair[0]) < MIN_WORDS:
            report[f"{split}: too short, or of a document whose other parts differ"] += 1
        elif any(plain(side) in known for side, known in zip(row.pair, taken, strict=True)):
            report[f"{split}: in another split or twice"] += 1
        elif any(len(runs & shared) >= SHARED * len(runs) for runs in map(_runs, row.pair)):
            report[f"{split}: much like another split"] += 1
        elif counts[row.source] >= MOST_OF_SOURCE:
            report[f"{split}: more than {MOST_OF_SOURCE} of a package"] += 1
        elif counts.total() >= MOST:
            report[f"{split}: more than {MOST}"] += 1
        else:
            counts[row.source] += 1
            for side, known in zip(row.pair, taken, strict=True):
                known.add(plain(side))
            yield row
    report[f"{split}: source packages"] = len(counts)


def _runs(line: str) -> set[tuple[str, ...]]:
    words = plain(line).split()
    return {tuple(words[start : start + 4]) for start in range(max(1, len(words) - 3))}
