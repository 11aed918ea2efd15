"""Classes of characters as Perl has them, and the steps that need nothing else: non-printing characters, lower case."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from data_prep.text.languages import UNSPACED, is_published

_TABLE = Path(__file__).with_name("unicode_14.txt")

SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Perl's ``\\s``, for use between the brackets of a regular expression; Python's has U+001C to U+001F as well."""
SPACES = re.compile(f"[{SPACE}]+")

ASCII, BMP, UNICODE = 0x7F, 0xFFFF, 0x10FFFF
"""The last code points of each."""
ABOVE_BMP = "\U00010000-\U0010ffff"
"""In place of ranges above ``BMP``, which regular expressions try one by one: for a quick look."""


@cache
def properties(last: int = UNICODE) -> dict[str, str]:
    """Every property of unicode_14.txt up to a code point, for use between the brackets of a regular expression."""
    found: dict[str, list[str]] = {}
    for paragraph in _TABLE.read_text(encoding="ascii").split("\n\n")[1:]:
        name, *lines = paragraph.splitlines()
        ranges = ([int(end, 16) for end in ends.split("-")] for line in lines for ends in line.split())
        found[name] = ["-".join(f"\\U{min(end, last):08x}" for end in ends) for ends in ranges if ends[0] <= last]
    return {name: "".join(ranges) for name, ranges in found.items()}


class Classes:
    """Perl's classes of characters up to a code point, for use between the brackets of a regular expression."""

    def __init__(self, last: int) -> None:
        found = properties(last)
        self.alpha = found["Alphabetic"]  # ``\p{IsAlpha}``: letters, letter-like numbers, vowel signs of many scripts
        self.alnum = self.alpha + found["Decimal_Number"]  # ``\p{IsAlnum}``: but no other number, such as ``²``
        self.number = found["Decimal_Number"] + found["Letter_or_Other_Number"]  # ``\p{IsN}``
        self.lowercase_letter = found["Lowercase_Letter"]  # ``\p{Ll}``
        self.lower = self.lowercase_letter + found["Other_Lowercase"]  # ``\p{IsLower}``
        self.mark = found["Mark"]  # ``\p{M}``


def unspaced_letters(letters_a_word: int | None = None, *, last: int = UNICODE) -> str:
    """Letters and marks of scripts without spaces between words, for use between the brackets of a regular expression.

    Args:
        letters_a_word: of the scripts that have so many in ``UNSPACED``; None: of all.
        last: the last code point.
    """
    scripts = (script for script, letters in UNSPACED.items() if letters_a_word in (None, letters))
    return "".join(properties(last)[f"Letters_of_{script}"] for script in scripts)


JOINERS = "\u200c\u200d"
"""Format characters within words: Persian, and many scripts of India, are not written without them."""
_JOINED = re.compile(f"([{JOINERS}])")


def non_printing_remover(*, language: str) -> Callable[[str], str]:
    """``remove-non-printing-char.perl``; in languages without published figures ``JOINERS`` stay, and zero width spaces
    of scripts without spaces between words go.
    """
    return remove_non_printing if is_published(language) else _remove_others


def remove_non_printing(line: str) -> str:
    """Each control, format, private or unassigned character becomes a space, as in ``remove-non-printing-char.perl``.

    Line and paragraph separators (U+2028, U+2029) are of other classes and stay, as they do there; tabs and U+0085 go.
    """
    if (line.isascii() and line.isprintable()) or _suspect().search(line) is None:
        return line
    return _other().sub(" ", line)


def _remove_others(line: str) -> str:
    parts = _JOINED.split(drop_zero_width(line))
    return "".join(part if part in JOINERS else remove_non_printing(part) for part in parts)


ZERO_WIDTH = re.compile("[\u200b\ufeff]+")
"""Zero width spaces; byte order marks within text are such."""


def drop_zero_width(line: str) -> str:
    """Drop zero width spaces beside letters of scripts without spaces between words."""
    return _unspaced_zero_width().sub("", line) if ZERO_WIDTH.search(line) else line


def lowercase(line: str) -> str:
    """Lower case as in ``lowercase.perl``: Python's, but a sigma that ends a word has the form of any other."""
    return line.replace("Σ", "σ").lower() if "Σ" in line else line.lower()


@cache
def _unspaced_zero_width() -> re.Pattern[str]:
    letter = f"[{unspaced_letters()}]"
    return re.compile(f"(?<={letter}){ZERO_WIDTH.pattern}|{ZERO_WIDTH.pattern}(?={letter})")


@cache
def _other() -> re.Pattern[str]:
    return re.compile(f"[{properties()['Other']}]")


@cache
def _suspect() -> re.Pattern[str]:
    """Return what may be of _other: quick to look for."""
    return re.compile(f"[{properties(BMP)['Other']}{ABOVE_BMP}]")
