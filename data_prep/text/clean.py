"""Clean text and its spaces, count words, cut long lines, and drop pairs: empty, too long, or of uneven lengths."""

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
    """Patterns of single characters in scripts without spaces between words."""

    quick: re.Pattern[str]  # matches at least all their letters, and is fast
    letters: dict[int, re.Pattern[str]]  # by the number of letters that count as a word
    signs: re.Pattern[str]  # punctuation


@cache
def _unspaced() -> _Unspaced:
    return _Unspaced(
        re.compile(f"[{unspaced_letters(last=BMP)}{ABOVE_BMP}]"),
        {count: re.compile(f"[{unspaced_letters(count)}]") for count in sorted({*UNSPACED.values()})},
        re.compile(f"[{_WIDE_MARKS}{properties()['Signs_of_scripts_without_spaces']}]"),
    )


def count_words(line: str) -> int:
    """Count the words of a line: between spaces, and in scripts without spaces estimated by the number of letters."""
    if line.isascii() or not (unspaced := _unspaced()).quick.search(line):
        return len(line.split())
    words = 0.0
    for letters_per_word, letters in unspaced.letters.items():
        line, count = letters.subn(" ", line)
        words += count / letters_per_word
    if words:
        line = unspaced.signs.sub(" ", line)
    return len(line.split()) + math.ceil(words)


CONTROL = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters except the tab, and line and paragraph separators. Without joiners, marks of direction and soft
hyphens, which scripts and emoji need."""


def clean_text(line: str) -> str:
    """Replace invisible characters that tools would treat as line ends or parts of words.

    Control characters and zero width spaces become spaces. In scripts without spaces between words (Khmer, Thai,
    Burmese), zero width spaces mark the ends of words, and are dropped.
    """
    if line.isprintable():
        return line
    return CONTROL.sub(" ", ZERO_WIDTH.sub(" ", drop_zero_width(line)))


def normalise_space(line: str) -> str:
    """Put one plain space between words, and none around them.

    Unicode has a dozen spaces and line separators (U+0085, U+2028), and tools disagree on which of them end a line.
    Without them, line n of one file stays aligned with line n of another.
    """
    return " ".join(line.split())


def pair_filter(
    *, min_words: int = 1, max_words: int = 100, max_ratio: float = 2.5
) -> Callable[[str, str], str | None]:
    """Return a function that returns the reason for dropping a pair, or None to keep it.

    It keeps pairs with ``min_words`` to ``max_words`` words on each side, as ``count_words`` counts them, and a ratio
    of the longer to the shorter side below ``max_ratio``.
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
    """Replace ``’`` by ``'``, the only normalisation of test sets in the published recipes."""
    return line.replace("’", "'")


def truncater(*, tokens: int) -> Callable[[str], str]:
    """Return a function that keeps the first ``tokens`` tokens of a line: 400 per article in the paper (6.4)."""
    if tokens < 1:
        raise UserError(f"truncate: tokens: got {tokens}, expected a number above 0")
    return lambda line: " ".join(line.split(" ")[:tokens])
