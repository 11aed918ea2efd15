"""Perl's classes of characters, and the steps that need only these: remove_non_printing, lowercase."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from data_prep.text.languages import UNSPACED, is_published

_TABLE = Path(__file__).with_name("unicode_14.txt")

SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Perl's ``\\s``, for use between the brackets of a regular expression. Python's also has U+001C to U+001F."""
SPACES = re.compile(f"[{SPACE}]+")

ASCII, BMP, UNICODE = 0x7F, 0xFFFF, 0x10FFFF
"""The last code points of each."""
ABOVE_BMP = "\U00010000-\U0010ffff"
"""One range for a quick search, in place of the ranges above ``BMP``, which regular expressions try one by one."""


@cache
def properties(last: int = UNICODE) -> dict[str, str]:
    """Read the properties in unicode_14.txt, for use between the brackets of a regular expression.

    ``last`` is the last code point to include.
    """
    ranges_of: dict[str, list[str]] = {}
    for paragraph in _TABLE.read_text(encoding="ascii").split("\n\n")[1:]:
        name, *lines = paragraph.splitlines()
        ranges = ([int(end, 16) for end in ends.split("-")] for line in lines for ends in line.split())
        ranges_of[name] = ["-".join(f"\\U{min(end, last):08x}" for end in ends) for ends in ranges if ends[0] <= last]
    return {name: "".join(ranges) for name, ranges in ranges_of.items()}


class Classes:
    """Perl's classes of characters up to the code point ``last``, for use between brackets of a regular expression."""

    def __init__(self, last: int) -> None:
        ranges = properties(last)
        self.alpha = ranges["Alphabetic"]  # ``\p{IsAlpha}``: letters, letter-like numbers, vowel signs of many scripts
        self.alnum = self.alpha + ranges["Decimal_Number"]  # ``\p{IsAlnum}``: without other numbers, such as ``²``
        self.number = ranges["Decimal_Number"] + ranges["Letter_or_Other_Number"]  # ``\p{IsN}``
        self.lowercase_letter = ranges["Lowercase_Letter"]  # ``\p{Ll}``
        self.lower = self.lowercase_letter + ranges["Other_Lowercase"]  # ``\p{IsLower}``
        self.mark = ranges["Mark"]  # ``\p{M}``


def unspaced_letters(letters_per_word: int | None = None, *, last: int = UNICODE) -> str:
    """Return letters and marks of scripts without spaces between words, for the brackets of a regular expression.

    Args:
        letters_per_word: select the scripts that have this number in ``UNSPACED``; None: all.
        last: the last code point to include.
    """
    scripts = (script for script, letters in UNSPACED.items() if letters_per_word in (None, letters))
    return "".join(properties(last)[f"Letters_of_{script}"] for script in scripts)


JOINERS = "\u200c\u200d"
"""Format characters inside words, which Persian and many scripts of India need."""
_JOINED = re.compile(f"([{JOINERS}])")


def non_printing_remover(*, language: str) -> Callable[[str], str]:
    """Return ``remove_non_printing``, changed for languages without published scores.

    For these, ``JOINERS`` stay, and zero width spaces in scripts without spaces between words are dropped.
    """
    return remove_non_printing if is_published(language) else _remove_all_but_joiners


def remove_non_printing(line: str) -> str:
    """Replace control, format, private and unassigned characters by spaces, like ``remove-non-printing-char.perl``.

    Tabs and U+0085 are replaced. Line and paragraph separators (U+2028, U+2029) are in other classes and stay.
    """
    if (line.isascii() and line.isprintable()) or _candidates().search(line) is None:
        return line
    return _non_printing().sub(" ", line)


def _remove_all_but_joiners(line: str) -> str:
    parts = _JOINED.split(drop_zero_width(line))
    return "".join(part if part in JOINERS else remove_non_printing(part) for part in parts)


ZERO_WIDTH = re.compile("[\u200b\ufeff]+")
"""Zero width spaces: U+200B, and byte order marks inside text."""


def drop_zero_width(line: str) -> str:
    """Drop zero width spaces next to letters of scripts without spaces between words."""
    return _unspaced_zero_width().sub("", line) if ZERO_WIDTH.search(line) else line


def lowercase(line: str) -> str:
    """Lower-case a line like ``lowercase.perl``: as Python does, but without the final form of sigma."""
    return line.replace("Σ", "σ").lower() if "Σ" in line else line.lower()


@cache
def _unspaced_zero_width() -> re.Pattern[str]:
    letter = f"[{unspaced_letters()}]"
    return re.compile(f"(?<={letter}){ZERO_WIDTH.pattern}|{ZERO_WIDTH.pattern}(?={letter})")


@cache
def _non_printing() -> re.Pattern[str]:
    return re.compile(f"[{properties()['Other']}]")


@cache
def _candidates() -> re.Pattern[str]:
    """Return a pattern that matches at least ``_non_printing``, and is faster."""
    return re.compile(f"[{properties(BMP)['Other']}{ABOVE_BMP}]")
