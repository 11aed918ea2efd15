"""Split a corpus so that its splits stay put when it grows, and so that descriptions that repeat stay in one.

Packages built from one source repeat whole paragraphs, and one sentence can go round a whole ecosystem ("This package
provides a library for the Haskell programming language"). If Debian 12's descriptions were split one by one, 44% of the
test descriptions would have 80% or more of their runs of eight words in train; split by family, 2% have.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from data_prep.text.debian import Description

SENTENCE_WORDS = 12  # from this length on, a shared sentence is no coincidence
LARGEST = 0.05
"""A family trains where it would be more than this share of valid or test, if they were as large as they should be."""
ONE_SOURCE = 4
"""But for families as small as this, of which a small corpus is made: a program, its library, headers and documents."""

_END = re.compile(r"(?<=[.!?:]) ")


def split_of(line: str, *, valid_percent: int, test_percent: int) -> str:
    """The split to which a line belongs, from nothing but the MD5 of its lower-cased text."""
    number = int(hashlib.md5(line.lower().encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % 100
    if number < valid_percent:
        return "valid"
    return "test" if number < valid_percent + test_percent else "train"


def near_duplicates(descriptions: Sequence[Description]) -> list[str]:
    """Each description's family: those that share a long sentence or the synopsis, directly or through others.

    A family goes by the first of its packages' names.
    """
    parents = list(range(len(descriptions)))

    def root(member: int) -> int:
        while parents[member] != member:
            parents[member] = parents[parents[member]]
            member = parents[member]
        return member

    first: dict[str, int] = {}
    for number, description in enumerate(descriptions):
        for sentence in _marks(description):
            parents[root(number)] = root(first.setdefault(sentence, number))
    names: dict[int, str] = {}
    for number, description in enumerate(descriptions):
        names[root(number)] = min(names.get(root(number), description.package), description.package)
    return [names[root(number)] for number in range(len(descriptions))]


def _marks(description: Description) -> set[str]:
    sentences = (sentence for paragraph in description.paragraphs for sentence in _END.split(paragraph))
    long = {sentence.lower() for sentence in sentences if len(sentence.split()) >= SENTENCE_WORDS}
    return long | {description.synopsis.lower()}


def split_by_group(descriptions: Sequence[Description], *, valid_percent: int, test_percent: int) -> list[str]:
    """The split of each description: its family's, by the hash of the family's name."""
    names = near_duplicates(descriptions)
    sizes = Counter(names)
    most = max(ONE_SOURCE, LARGEST * len(names) * min(valid_percent, test_percent) / 100)
    return [
        "train" if sizes[name] > most else split_of(name, valid_percent=valid_percent, test_percent=test_percent)
        for name in names
    ]
