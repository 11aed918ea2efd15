"""Byte-pair encoding through subword-nmt: learn the merges once, apply them to every part."""

import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stderr, suppress

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from scripts.common.errors import UserError


def learn_from_counts(counts: Iterable[tuple[str, int]], *, merges: int) -> str:
    """Learn ``merges`` merge operations, fewer where no pair occurs twice any more; returns subword-nmt's codes.

    Raises:
        UserError: not one merge can be learnt.
    """
    codes = io.StringIO()
    # subword-nmt draws a progress bar, which fills a log with repeats; and fails where no word has two characters
    with suppress(ValueError), nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        learn_bpe((f"{word} {count}" for word, count in counts), codes, merges, is_dict=True)
    text = codes.getvalue()
    if count_merges(text) == 0:
        raise UserError("no BPE merge can be learnt: no two characters stand together twice; give more training text")
    return text


def count_merges(codes: str) -> int:
    """How many merges there are in subword-nmt's codes."""
    return len(codes.strip("\n").split("\n")) - 1  # the first line is the format's version


def outside(counts: Iterable[tuple[str, int]], glossaries: Sequence[str]) -> Iterable[tuple[str, int]]:
    """The words that none of the regular expressions matches: what stays whole is not to cost merges."""
    whole = [re.compile(pattern) for pattern in glossaries]
    return ((word, count) for word, count in counts if not any(pattern.fullmatch(word) for pattern in whole))


def encoder_from_file(*, codes: str, glossaries: Sequence[str] = ()) -> Callable[[str], str]:
    """Segments tokenised lines with the merges in a file; ``@@ `` marks where a word goes on.

    What one of ``glossaries``, regular expressions, matches stays whole.
    """
    with open(codes, encoding="utf-8", newline="\n") as f:
        return BPE(f, glossaries=list(glossaries)).process_line
