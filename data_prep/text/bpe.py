"""Byte-pair encoding as subword-nmt does it: learn the merges once, apply them to every part, remember each word."""

import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from data_prep.text.word_cache import WordCache
from scripts.common.errors import UserError

_OUTER = "\r\n "


def learn_from_counts(counts: Iterable[tuple[str, int]], *, merges: int) -> str:
    """Learn ``merges`` merge operations, fewer where no pair occurs twice any more; returns subword-nmt's codes.

    Args:
        counts: how often each word occurs. The order matters to nothing; memory grows with the number of words, not
            with the text they come from.
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
    """Return how many merges there are in subword-nmt's codes."""
    return len(codes.strip("\n").split("\n")) - 1  # the first line is the format's version


def without_glossaries(counts: Iterable[tuple[str, int]], glossaries: Sequence[str]) -> Iterable[tuple[str, int]]:
    """The words that none of the regular expressions matches: what stays whole is not to cost merges."""
    whole = [re.compile(pattern) for pattern in glossaries]
    return ((word, count) for word, count in counts if not any(pattern.fullmatch(word) for pattern in whole))


def check_glossaries(glossaries: Sequence[str]) -> None:
    """Refuse what is no regular expression."""
    for glossary in glossaries:
        try:
            re.compile(glossary)
        except re.error as error:
            raise UserError(f"bpe: the glossary {glossary!r} is no regular expression: {error}") from error


def encoder_from_file(*, codes: str, glossaries: Sequence[str] = ()) -> Callable[[str], str]:
    """Segments tokenised lines with the merges in a file; ``@@ `` marks where a word goes on.

    Args:
        codes: file of merges that subword-nmt wrote.
        glossaries: regular expressions; what they match is never segmented, ``@entity[0-9]+`` for example.
    """
    try:
        text = Path(codes).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"bpe: {codes} cannot be read as text: {error}") from error
    return encoder(codes=text, glossaries=glossaries)


def encoder(*, codes: str, glossaries: Sequence[str] = ()) -> Callable[[str], str]:
    """``encoder_from_file`` with the text of the codes."""
    check_glossaries(glossaries)
    for line in codes.strip("\n").split("\n")[1:]:
        if len(line.strip(_OUTER).split(" ")) != 2:  # subword-nmt would end the process
            raise UserError(f"bpe: {line!r} is no merge of two units; learn the codes again")
    bpe = BPE(io.StringIO(codes), glossaries=list(glossaries))
    bpe.cache = _NoCache()  # words are remembered here, and it would grow without bound
    words = WordCache(lambda word: " ".join(bpe.segment_tokens([word])))

    def encode(line: str) -> str:
        inner = line.strip(_OUTER)
        text = " ".join(map(words.__getitem__, filter(None, inner.split(" "))))
        if len(inner) == len(line):
            return text
        start = line.find(inner) if inner else len(line)
        return line[:start] + text + line[start + len(inner) :]  # subword-nmt keeps what stands around the words

    return encode


class _NoCache(dict[str, tuple[str, ...]]):
    def __setitem__(self, word: str, pieces: tuple[str, ...]) -> None:
        pass
