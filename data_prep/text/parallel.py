"""Pairs of lines from a document and its translation: alignment, cleaning, and a split by source package."""

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
"""Source packages with more than this share of all pairs go to train."""
MOST_OF_SOURCE = 150  # pairs of a source package in validation or test
MOST = 2000  # pairs in validation or test
MIN_WORDS = 5  # of a pair in validation or test
SHARED = 0.6
"""A line of validation or test is dropped if this share of its 4-grams of words, or more, is also in another split."""


class Row(NamedTuple):
    """A pair and its origin."""

    source: str  # the source package
    kind: str  # the kind of file
    exact: bool  # True if the alignment is certain, so that validation or test may have the pair
    pair: Pair


def align(left: Sequence[Block], right: Sequence[Block]) -> tuple[list[Pair], bool] | None:
    """Align the blocks of a document with those of its translation.

    Sections are aligned in order, and the blocks of a section if both sides have the same tags.

    Returns:
        the pairs, and True if all sections have the same tags on both sides. None if the numbers of sections differ,
        or if numbers in the text show that the blocks do not match.
    """
    sections = _sections(left), _sections(right)
    if len(sections[0]) != len(sections[1]):
        return None
    pairs: list[Pair] = []
    exact = True
    for left_section, right_section in zip(*sections, strict=True):
        if [tag for tag, _ in left_section] == [tag for tag, _ in right_section]:
            pairs += [(a, b) for (_, a), (_, b) in zip(left_section, right_section, strict=True)]
        else:
            exact = False
    with_numbers = [(a, b) for a, b in ((_numbers(a), _numbers(b)) for a, b in pairs) if a or b]
    wrong = sum(not a & b for a, b in with_numbers)
    if len(with_numbers) >= 4 and wrong > 0.2 * len(with_numbers):
        return None
    return pairs, exact


def _sections(blocks: Sequence[Block]) -> list[Sequence[Block]]:
    starts = [index for index, (tag, _) in enumerate(blocks) if tag in HEADS]
    return [blocks[start:end] for start, end in pairwise([0, *starts, len(blocks)])]


def _numbers(line: str) -> set[str]:
    return set(re.findall(r"\d{2,}", line))


_INVISIBLE = dict.fromkeys((0xAD, 0x200B, 0xFEFF, 0))
_STRAY = re.compile(r" ([,.;:!?])(?=\s|$)")  # a space that remains when markup is removed
_STRAY_IN_FRENCH = re.compile(r" ([,.])(?=\s|$)")  # French has a space before the other signs
_END = re.compile(r"(?<=[.!?])[\"”“’»)\]]*\s+(?=[\"“„«(\[]*[A-ZÄÖÜÀÉÈÊÎÔÇ])|(?<=[。！？])")
_ABBREVIATED = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|z\. ?B|d\. ?h|u\. ?a|bzw|ca|Nr|No|St|Dr|Mrs?|usw|evtl|ggf|vgl|p\. ?ex|resp|Fig|"
    r"approx|max|min|inkl|sog)|\b[A-Z]|\b\d+)\.$"
)


def sentences(english: str, foreign: str, *, language: str) -> Iterator[Pair]:
    """Yield pairs of sentences of a block if both sides have the same number, of similar lengths; else the block."""
    sides = [_sentences(english, _STRAY), _sentences(foreign, _STRAY_IN_FRENCH if language == "fr" else _STRAY)]
    even = len(sides[0]) == len(sides[1])
    if even and all(count_words(a) < 3 * count_words(b) + 5 for a, b in zip(*sides, strict=True)):
        yield from zip(*sides, strict=True)
    else:
        yield " ".join(sides[0]), " ".join(sides[1])


def _sentences(text: str, stray: re.Pattern[str]) -> list[str]:
    line = stray.sub(r"\1", " ".join(text.translate(_INVISIBLE).split()))
    parts, start = [], 0
    for end in _END.finditer(line):
        if not _ABBREVIATED.search(line[max(0, end.start() - 12) : end.start()]):
            parts.append(line[start : end.end()].strip())
            start = end.end()
    return list(filter(None, [*parts, line[start:].strip()]))


_LETTER = re.compile(r"[^\W\d_]")
_HAN = re.compile(r"[\u3400-\u9fff]")
_ENGLISH = words("the of and to is for with this are be that from it you your can or if by not")
_length_fault = pair_filter(min_words=3, max_words=100, max_ratio=2.5)


def fault(english: str, foreign: str, *, language: str) -> str | None:
    """Return the reason for dropping a pair, or None to keep it."""
    foreign = _STRAY.sub(r"\1", foreign)  # a sign between spaces, as in French, would count as a word
    if (reason := _length_fault(english, foreign)) is not None:
        return reason
    for line in (english, foreign):
        if len(_LETTER.findall(line)) < 0.55 * len(line.replace(" ", "")):
            return "more signs than letters"
    if language.startswith("zh") and not _HAN.search(foreign):
        return "not translated"
    foreign_words = re.findall(r"[^\W_]+", foreign.lower())
    same = sum(word in english.lower().split() for word in foreign.lower().split())
    in_english = sum(word in _ENGLISH for word in foreign_words)
    if same > 0.65 * len(foreign.split()) or (in_english > 1 and in_english > 0.15 * len(foreign_words)):
        return "not translated"
    numbers = _numbers(english), _numbers(foreign)
    if not numbers[0] & numbers[1] and (all(numbers) or max(map(len, numbers)) > 1):
        return "other numbers"
    return None


_PLACEHOLDER = re.compile(r"%(?:\d+\$)?[-+#0 ]*\d*(?:\.\d+)?[hlLqzw]*[a-zA-Z%]|%\d+|\$?\{\w*\}|\$\w+|@\w+|\d+")


def plain(line: str) -> str:
    """Reduce a line to what near-duplicates share: lower-case words, and 0 for numbers and placeholders."""
    return " ".join(re.sub(r"[\W_]+", " ", _PLACEHOLDER.sub("0", line.lower())).split())


def split_by_source(
    rows: Iterable[Row], *, valid_percent: int, test_percent: int, report: Counter[str]
) -> Iterator[tuple[str, Pair]]:
    """Split pairs by their source packages; yields (split, pair).

    Near-duplicates are dropped, and lines of validation and test that are similar to another split.

    Args:
        rows: the pairs.
        valid_percent: percentage of source packages in validation.
        test_percent: percentage of source packages in test.
        report: counts pairs and drops by reason.
    """
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    most = LARGEST * sum(map(len, by_source.values()))
    splits: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    for source in sorted(by_source):
        split = split_of(source, valid_percent=valid_percent, test_percent=test_percent)
        splits["train" if len(by_source[source]) > most else split] += by_source[source]
    seen: set[Pair] = set()
    for split, split_rows in splits.items():
        splits[split] = []
        for row in split_rows:
            key = plain(row.pair[0]), plain(row.pair[1])
            if key in seen:
                report["near-duplicates"] += 1
            else:
                seen.add(key)
                splits[split].append(row)
    report.update(f"train: {row.kind}" for row in splits["train"])
    yield from (("train", row.pair) for row in splits["train"])
    for split, earlier in (("valid", splits["train"]), ("test", splits["train"] + splits["valid"])):
        yield from ((split, row.pair) for row in _unlike(earlier, splits[split], split, report))


def _unlike(earlier: Sequence[Row], rows: Sequence[Row], split: str, report: Counter[str]) -> Iterator[Row]:
    """Yield the rows of validation or test that are unlike all rows of earlier splits on both sides; at most MOST.

    Args:
        earlier: the rows of the earlier splits.
        rows: the rows of the split.
        split: the name of the split, for the report.
        report: counts the dropped rows by reason.
    """
    seen = [{plain(row.pair[side]) for row in earlier} for side in (0, 1)]
    own_sequences = {sequence for row in rows for side in row.pair for sequence in _sequences(side)}
    shared = {
        sequence for row in earlier for side in row.pair for sequence in _sequences(side) if sequence in own_sequences
    }
    counts: Counter[str] = Counter()
    # ordered by a hash: a random part of each package, which does not depend on the other packages
    for row in sorted(rows, key=lambda row: hashlib.md5("\n".join(row.pair).encode(), usedforsecurity=False).digest()):
        if not row.exact or count_words(row.pair[0]) < MIN_WORDS:
            report[f"{split}: too short, or of a document whose other parts differ"] += 1
        elif any(plain(line) in lines for line, lines in zip(row.pair, seen, strict=True)):
            report[f"{split}: in another split or twice"] += 1
        elif any(len(sequences & shared) >= SHARED * len(sequences) for sequences in map(_sequences, row.pair)):
            report[f"{split}: much like another split"] += 1
        elif counts[row.source] >= MOST_OF_SOURCE:
            report[f"{split}: more than {MOST_OF_SOURCE} of a package"] += 1
        elif counts.total() >= MOST:
            report[f"{split}: more than {MOST}"] += 1
        else:
            counts[row.source] += 1
            for line, lines in zip(row.pair, seen, strict=True):
                lines.add(plain(line))
            yield row
    report[f"{split}: source packages"] = len(counts)


def _sequences(line: str) -> set[tuple[str, ...]]:
    """Return the sequences of four words in a line, or all of its words if there are fewer."""
    words = plain(line).split()
    return {tuple(words[start : start + 4]) for start in range(max(1, len(words) - 3))}
