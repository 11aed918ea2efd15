"""BLEU of tokenised text, as multi-bleu.perl counts it, and the splitting of compounds that En-De is reported with."""

import re
from collections.abc import Sequence

_COMPOUND = re.compile(rb"([^ \t\n\r\f\v])-([^ \t\n\r\f\v])")
# Perl reads bytes and parts words at ASCII's blanks alone; Python's split() knows 19 more
_BLANKS_OF_PYTHON = "\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_BLANKS_OF_PYTHON += "\u2028\u2029\u202f\u205f\u3000"
_NO_BLANK = {ord(blank): 0xF0000 + ord(blank) for blank in _BLANKS_OF_PYTHON}  # one each, of a private plane


def words(lines: Sequence[str]) -> list[str]:
    """Lines of which ``split()`` makes the words that multi-bleu.perl sees, one for one."""
    return [line.translate(_NO_BLANK) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Tokenised lines with `` ##AT##-##AT## `` for each hyphen between two characters that are not blanks.

    A hyphen's neighbours belong to it: ``a-b-c`` is split once, ``aa-bb-cc`` twice. Neighbours are bytes of UTF-8, as
    in the Perl one-liner behind the published figures for newstest2014, so that ``a-ö-b`` is split twice.
    """
    return [_COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode() for line in lines]
