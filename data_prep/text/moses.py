"""Moses: the versions of its scripts, and ``clean-corpus-n.perl``, which filters pairs."""

import re
from collections.abc import Callable

from data_prep.common.errors import UserError
from data_prep.text.characters import SPACE, SPACES

VERSIONS = ("2018-10", "2018-11", "2019-11")
"""Moses at the end of these months. The versions differ in three rules:

- 2018-10, used for the paper: unchanged for years.
- 2018-11: the tokeniser always splits the final dot of a line from its word (commit 9fc964d).
- 2019-11: ``‘`` and ``‚`` are normalised to ``'`` instead of ``"`` (f6d7add); English ``Rs.`` is an
  abbreviation (4da86c3).
"""

_MOST_CHARACTERS = 1000  # of a token
_TOO_LONG = re.compile(f"[^{SPACE}]{{{_MOST_CHARACTERS + 1}}}")


def check_version(moses: str) -> str:
    """Return the version; raises a UserError if it does not exist."""
    if moses not in VERSIONS:
        raise UserError(f"moses: got {moses!r}, expected one of {', '.join(VERSIONS)} (quoted, in YAML)")
    return moses


def clean_line(line: str) -> str:
    """Change a line as ``clean-corpus-n.perl`` does before it filters the pair: one space between tokens, no ``|``.

    In Moses, ``|`` separates factors, and stays if the first pair of a corpus has one. Here it is always dropped: no
    dataset has factors, and text tokenised with escaping has no ``|``.
    """
    if "|" in line:
        line = line.replace("|", "")
    if line.isprintable():  # the only space in it is U+0020
        return " ".join(line.split())
    return SPACES.sub(" ", line).strip(" ")


def moses_filter(*, min_tokens: int, max_tokens: int, ratio: float = 9.0) -> Callable[[str, str], str | None]:
    """Return ``clean-corpus-n.perl`` as a function: the reason for which it drops a pair, or None.

    The function takes lines from ``clean_line``.

    Args:
        min_tokens: the smallest number of tokens on each side.
        max_tokens: the largest.
        ratio: the largest ratio of the longer side to the shorter one, in tokens.
    """
    if not (1 <= min_tokens <= max_tokens and ratio >= 1):
        raise UserError(
            f"clean: got min_tokens {min_tokens}, max_tokens {max_tokens}, ratio {ratio:g}; expected 1 <= min_tokens "
            "<= max_tokens and ratio 1 or more"
        )
    fewer, more = f"fewer than {min_tokens} tokens", f"more than {max_tokens} tokens"
    uneven, wide = f"length ratio above {ratio:g}", f"a token of more than {_MOST_CHARACTERS} characters"

    def reason(source: str, target: str) -> str | None:
        if not source or not target:
            return "empty"
        sources, targets = source.count(" ") + 1, target.count(" ") + 1
        if sources > max_tokens or targets > max_tokens:
            return more
        if sources < min_tokens or targets < min_tokens:
            return fewer
        if sources / targets > ratio or targets / sources > ratio:
            return uneven
        for line in (source, target):
            if len(line) > _MOST_CHARACTERS and _TOO_LONG.search(line):
                return wide
        return None

    return reason
