"""Byte-pair encoding by subword-nmt: learn merges, and segment lines with them.

Two engines segment: subword-nmt and fastBPE. They give the same text, at the same speed, since the subwords of each
word are cached. fastBPE would learn other merges, so subword-nmt always learns them.
"""

import io
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

from subword_nmt.apply_bpe import BPE, isolate_glossary
from subword_nmt.learn_bpe import learn_bpe

from data_prep.common.errors import UserError
from data_prep.common.files import stands_for
from data_prep.common.progress import Advance, ignore_progress

ENGINES = ("subword-nmt", "fastBPE")
_SEPARATOR = "@@"
_OUTER = "\r\n "
_CACHED_WORDS = 250_000  # some 40 MB of subwords


class _CountedLines(io.StringIO):
    """A text in memory that reports the lines that are written to it."""

    def __init__(self, advance: Advance) -> None:
        super().__init__()
        self._advance = advance

    def write(self, line: str) -> int:
        self._advance(1)
        return super().write(line)


def learn_from_counts(
    counts: Iterable[tuple[str, int]],
    *,
    merges: int,
    glossaries: Sequence[str] = (),
    advance: Advance = ignore_progress,
) -> str:
    """Learn BPE merges from words and their numbers of occurrences.

    Args:
        counts: the words, in any order. Memory grows with their number.
        merges: the number of merges; fewer are learnt if no pair of subwords occurs twice any more.
        glossaries: regular expressions; words that one of them matches are never segmented, and are left out here.
        advance: is called with the number of merges learnt since the last call.

    Returns:
        the merges as the text of subword-nmt's file.
    """
    codes, patterns = _CountedLines(advance), [re.compile(pattern) for pattern in glossaries]
    words = (f"{word} {count}" for word, count in counts if not any(pattern.fullmatch(word) for pattern in patterns))
    # subword-nmt draws a progress bar of its own, and fails if no word has two characters
    with suppress(ValueError), redirect_stderr(io.StringIO()):
        learn_bpe(words, codes, merges, is_dict=True)
    text = codes.getvalue()
    if count_merges(text) == 0:
        raise UserError("no BPE merge can be learnt: no pair of characters occurs twice; give more training text")
    return text


def count_merges(codes: str) -> int:
    """Count the merges in the text of subword-nmt's file."""
    return len(codes.strip("\n").split("\n")) - 1  # the first line is the format's version


def check_engine(engine: str) -> None:
    """Raise a UserError if an engine does not exist or is not installed."""
    if engine not in ENGINES:
        raise UserError(f"bpe: engine: got {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "fastBPE" and find_spec("fastBPE") is None:
        raise UserError(
            "bpe: the engine fastBPE is not installed; run scripts/setup.sh --fastbpe, or use the engine subword-nmt, "
            "which gives the same text at the same speed"
        )


def encoder(*, codes: str, glossaries: Sequence[str] = (), engine: str = ENGINES[0]) -> Callable[[str], str]:
    """Return a function that segments a tokenised line into subwords; all but the last of a word end in ``@@``.

    Args:
        codes: a file of merges that subword-nmt wrote.
        glossaries: regular expressions; text that they match is never segmented, ``@entity[0-9]+`` for example.
        engine: subword-nmt, or fastBPE, which must be installed.

    Raises:
        UserError: the file is not one of subword-nmt, or the engine is not installed.
    """
    try:
        text = Path(codes).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"bpe: {codes} cannot be read as text: {error}") from error
    if problem := stands_for(Path(codes)):
        raise UserError(f"bpe: {codes} is {problem}")
    check_engine(engine)
    for line in text.strip("\n").split("\n")[1:]:
        if len(line.strip(_OUTER).split(" ")) != 2:  # subword-nmt would end the process
            raise UserError(f"bpe: {line!r} is no merge of two subwords; learn the codes again")
    if engine == "fastBPE":
        segment = _fastbpe_segmenter(text, glossaries)
    else:
        bpe = BPE(io.StringIO(text), glossaries=list(glossaries))
        bpe.cache = _NoCache()  # lru_cache replaces it: subword-nmt's cache grows without bound

        def segment(word: str) -> str:
            return " ".join(bpe.segment_tokens([word]))

    return partial(_encode, lru_cache(_CACHED_WORDS)(segment))


def _encode(segment: Callable[[str], str], line: str) -> str:
    inner = line.strip(_OUTER)
    text = " ".join(filter(None, map(segment, inner.split(" "))))
    start = len(line) - len(line.lstrip(_OUTER))
    return line[:start] + text + line[start + len(inner) :]  # like subword-nmt, keep the spaces around the words


class _NoCache(dict[str, tuple[str, ...]]):
    def __setitem__(self, word: str, pieces: tuple[str, ...]) -> None:
        pass


def _fastbpe_segmenter(codes: str, glossaries: Sequence[str]) -> Callable[[str], str]:
    """Return a function that segments a word with fastBPE, and like subword-nmt where a glossary matches."""
    from fastBPE import fastBPE

    version, *merges = codes.strip("\n").split("\n")
    if version.split() != ["#version:", "0.2"]:
        raise UserError(f"bpe: codes start with {version!r}, expected '#version: 0.2'; use the engine subword-nmt")
    with tempfile.TemporaryDirectory(prefix="fastbpe-") as name:
        file = Path(name) / "codes"
        unique = dict.fromkeys(" ".join(merge.split()) for merge in merges)  # the first of repeated merges counts
        file.write_bytes("".join(f"{merge} 1\n" for merge in unique).encode())
        bpe = fastBPE(str(file), "")
    any_glossary = re.compile("|".join(glossaries) or r"(?!)")

    def segment(word: str) -> str:
        parts = [word]
        for glossary in glossaries:
            parts = [inner for part in parts for inner in isolate_glossary(part, glossary)]
        return f"{_SEPARATOR} ".join(part if any_glossary.fullmatch(part) else bpe.apply([part])[0] for part in parts)

    return segment
