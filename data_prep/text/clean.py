"""Clean text and its spaces, count words, cut long lines, and drop pairs that teach nothing: empty, long or uneven."""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from data_prep.common.errors import UserError
from data_prep.text.characters import ABOVE_BMP, BMP, ZERO_WIDTH, drop_zero_width, properties, unspaced_letters
from data_prep.text.languages import UNSPACED

_WIDE_MARKS = "\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"


class _Unspaced(NamedTuple):
    """Patterns of one character of scripts without spaces between words."""

    quick: re.Pattern[str]  # of all that may be one of their letters
    letters: dict[int, re.Pattern[str]]  # by how many are counted as a word
    signs: re.Pattern[str]  # what stands between their letters


@cache
def _unspaced() -> _Unspaced:
    return _Unspaced(
        re.compile(f"[{unspaced_letters(last=BMP)}{ABOVE_BMP}]"),
        {count: re.compile(f"[{unspaced_letters(count)}]") for count in sorted({*UNSPACED.values()})},
        re.compile(f"[{_WIDE_MARKS}{properties()['Signs_of_scripts_without_spaces']}]"),
    )


def count_words(line: str) -> int:
    """Return how many words a line has: what spaces split, and in scripts without spaces an estimate by its letters."""
    if line.isascii() or not (unspaced := _unspaced()).quick.search(line):
        return len(line.split())
    words = 0.0
    for letters_a_word, letters in unspaced.letters.items():
        line, count = letters.subn(" ", line)
        words += count / letters_a_word
    if words:
        line = unspaced.signs.sub(" ", line)
    return len(line.split()) + math.ceil(words)


CONTROL = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters but the tab; line and paragraph separators. Joiners, marks of direction and soft hyphens are none
of these: scripts and emoji are written with them."""


def clean_text(line: str) -> str:
    """Text as people see it, without characters that would break its lines or join its words unseen.

    Control characters become spaces, and so do zero width spaces; but these go beside letters of scripts without spaces
    between words, where they mark the ends of words and nobody sees a space (Khmer, Thai, Burmese).
    """
    if line.isprintable():
        return line
    return CONTROL.sub(" ", ZERO_WIDTH.sub(" ", drop_zero_width(line)))


def normalise_space(line: str) -> str:
    """One plain space between words, none around them.

    Unicode knows a dozen spaces and line separators (U+0085, U+2028); tools disagree on which of them end a line, so
    none may reach a file of which line n must match line n of another.
    """
    return " ".join(line.split())


def pair_filter(
    *, min_words: int = 1, max_words: int = 100, max_ratio: float = 2.5
) -> Callable[[str, str], str | None]:
    """Return why a pair is dropped, if it has not ``min_words`` to ``max_words`` words a side and a length ratio below
    ``max_ratio``; words as ``count_words`` counts them.
    """
    if not (0 < min_words <= max_words and max_ratio > 1):
        raise UserError(
            f"clean: got min_words {min_words}, max_words {max_words}, max_ratio {max_ratio:g}, expected "
            "1 <= min_words <= max_words and max_ratio above 1"
        )

    def reason(source: str, target: str) -> str | None:
        shorter, longer = sorted((count_words(source), count_words(target)))
        if shorter == 0:
            return "empty"
        if shorter < min_words:
            return f"fewer than {min_words} words"
        if longer > max_words:
            return f"more than {max_words} words"
        if longer >= max_ratio * shorter:
            return f"length ratio of {max_ratio:g} or more"
        return None

    return reason


def straighten_apostrophes(line: str) -> str:
    """Write ``’`` as ``'``, as the published recipes do with test sets, which they do not normalise otherwise."""
    return line.replace("’", "'")


def truncater(*, tokens: int) -> Callable[[str], str]:
    """The first ``tokens`` tokens of a tokenised line: 400 of a news article in the paper (section 6.4)."""
    if tokens < 1:
        raise UserError(f"truncate: tokens: got {tokens}, expected a number above 0")
    return lambda line: " ".join(line.split(" ")[:tokens])
