"""Split a corpus by a hash: stable when the corpus grows, and with repetitive descriptions in the same split.

Packages built from one source repeat whole paragraphs, and some sentences occur in hundreds of packages ("This package
provides a library for the Haskell programming language"). If Debian 12's descriptions were split one by one, 44% of the
test descriptions would share 80% or more of their sequences of eight words with train; split by family, 2% do.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from data_prep.text.debian import Description

SENTENCE_WORDS = 12  # two descriptions do not share a sentence of this length by chance
LARGEST = 0.05
"""Families larger than this share of validation or test, at their intended sizes, go to train."""
ONE_SOURCE = 4
"""Families of up to this size may go anywhere, even in a small corpus: a program, its library, headers, documents."""

_END = re.compile(r"(?<=[.!?:]) ")


def split_of(line: str, *, valid_percent: int, test_percent: int) -> str:
    """Return the split of a line, which depends only on the MD5 of its lower-cased text."""
    number = int(hashlib.md5(line.lower().encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % 100
    if number < valid_percent:
        return "valid"
    return "test" if number < valid_percent + test_percent else "train"


def near_duplicates(descriptions: Sequence[Description]) -> list[str]:
    """Return the family of each description: those that share a long sentence or the synopsis, directly or indirectly.

    The name of a family is the alphabetically first name of its packages.
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
    """Return the split of each description, by the hash of the name of its family."""
    names = near_duplicates(descriptions)
    sizes = Counter(names)
    most = max(ONE_SOURCE, LARGEST * len(names) * min(valid_percent, test_percent) / 100)
    return [
        "train" if sizes[name] > most else split_of(name, valid_percent=valid_percent, test_percent=test_percent)
        for name in names
    ]
