"""Classes of characters as Perl has them, and the steps that need nothing else: non-printing characters, lower case."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("unicode_14.txt")

SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Perl's ``\\s``, for use between the brackets of a regular expression; Python's has U+001C to U+001F as well."""
SPACES = re.compile(f"[{SPACE}]+")

ASCII, SIXTEEN_BITS, UNICODE = 0x7F, 0xFFFF, 0x10FFFF
"""The last code points of each."""

BEYOND = re.compile("[\U00010000-\U0010ffff]")
"""Characters of more than 16 bits. Regular expressions try the ranges above these one by one for each character that
is in none, so text without them is better served by classes without them."""


@cache
def properties(last: int = UNICODE) -> dict[str, str]:
    """Every property of unicode_14.txt up to a code point, for use between the brackets of a regular expression."""
    found: dict[str, list[str]] = {}
    for paragraph in _TABLE.read_text(encoding="ascii").split("\n\n")[1:]:
        name, *lines = paragraph.splitlines()
        ranges = ([int(end, 16) for end in ends.split("-")] for line in lines for ends in line.split())
        found[name] = ["-".join(f"\\U{min(end, last):08x}" for end in ends) for ends in ranges if ends[0] <= last]
    return {name: "".join(ranges) for name, ranges in found.items()}


@dataclass(frozen=True)
class Classes:
    """Perl's classes of characters, for use between the brackets of a regular expression."""

    alpha: str  # ``\p{IsAlpha}``: letters, letter-like numbers and the vowel signs of many scripts
    alnum: str  # ``\p{IsAlnum}``: these and decimal digits, but no other number, such as ``²``
    number: str  # ``\p{IsN}``: any number
    lower: str  # ``\p{IsLower}``
    lowercase_letter: str  # ``\p{Ll}``

    @staticmethod
    @cache
    def up_to(last: int) -> "Classes":
        """The classes as far as a code point: the fewer ranges, the faster."""
        found = properties(last)
        return Classes(
            alpha=found["Alphabetic"],
            alnum=found["Alphabetic"] + found["Decimal_Number"],
            number=found["Decimal_Number"] + found["Letter_or_Other_Number"],
            lower=found["Lowercase_Letter"] + found["Other_Lowercase"],
            lowercase_letter=found["Lowercase_Letter"],
        )


def remove_non_printing(line: str) -> str:
    """Each control, format, private or unassigned character becomes a space, as in ``remove-non-printing-char.perl``.

    Line and paragraph separators (U+2028, U+2029) are of other classes and stay, as they do there; tabs and U+0085 go.
    """
    if (line.isascii() and line.isprintable()) or _suspect().search(line) is None:
        return line
    return _other().sub(" ", line)


def lowercase(line: str) -> str:
    """Lower case as in ``lowercase.perl``: Python's, but a sigma that ends a word has the form of any other."""
    return line.replace("Σ", "σ").lower() if "Σ" in line else line.lower()


@cache
def _other() -> re.Pattern[str]:
    return re.compile(f"[{properties()['Other']}]")


@cache
def _suspect() -> re.Pattern[str]:
    """Return what may be of _other: quick to look for."""
    return re.compile(f"[{properties(SIXTEEN_BITS)['Other']}\U00010000-\U0010ffff]")
