"""Byte-pair encoding through subword-nmt: learn the merges once, apply them to every part."""

import io
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from functools import cache, partial

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from data_prep.text.tokenise import in_chunks
from scripts.common.errors import UserError


def learn(lines: Iterable[str], *, merges: int) -> str:
    """Learn ``merges`` merge operations, fewer where no pair occurs twice any more; returns subword-nmt's codes.

    Raises:
        UserError: not one merge can be learnt.
    """
    codes = io.StringIO()
    # subword-nmt draws a progress bar, which fills a log with repeats; and fails where no word has two characters
    with suppress(ValueError), nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        learn_bpe(lines, codes, merges)
    text = codes.getvalue()
    if count_merges(text) == 0:
        raise UserError("no BPE merge can be learnt: no two characters stand together twice; give more training text")
    return text


def count_merges(codes: str) -> int:
    """How many merges there are in subword-nmt's codes."""
    return len(codes.strip("\n").split("\n")) - 1  # the first line is the format's version


def apply(lines: Sequence[str], *, codes: str, workers: int = 1) -> list[str]:
    """Segment tokenised lines; ``@@ `` marks where a word goes on, as fairseq's ``--remove-bpe`` expects."""
    return in_chunks(partial(_apply, codes=codes), lines, workers=workers)


@cache
def _encoder(codes: str) -> BPE:
    return BPE(io.StringIO(codes))


def _apply(lines: Sequence[str], *, codes: str) -> list[str]:
    encoder = _encoder(codes)
    return [encoder.process_line(line) for line in lines]
