"""Byte-pair encoding as subword-nmt does it: learn the merges once, apply them to every part.

The units of each word are remembered, so that both engines, subword-nmt and fastBPE, are equally fast. They give the
same text. The merges that fastBPE learns are other ones, so subword-nmt alone learns them.
"""

import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from subword_nmt.apply_bpe import BPE, isolate_glossary
from subword_nmt.learn_bpe import learn_bpe

from data_prep.text.word_cache import WordCache
from scripts.common.errors import UserError
from scripts.common.files import stands_for

ENGINES = ("subword-nmt", "fastBPE")
_SEPARATOR = "@@"
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


def check_engine(engine: str) -> None:
    """Refuse an engine that is not known or not installed."""
    if engine not in ENGINES:
        raise UserError(f"bpe: engine: got {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "fastBPE":
        _fastbpe()


def encoder(*, codes: str, glossaries: Sequence[str] = (), engine: str = ENGINES[0]) -> Callable[[str], str]:
    """Segments tokenised lines with the merges in a file; ``@@ `` marks where a word goes on.

    Args:
        codes: file of merges that subword-nmt wrote.
        glossaries: regular expressions; what they match is never segmented, ``@entity[0-9]+`` for example.
        engine: subword-nmt, or fastBPE, which must be installed.
    """
    try:
        text = Path(codes).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"bpe: {codes} cannot be read as text: {error}") from error
    if what := stands_for(Path(codes)):
        raise UserError(f"bpe: {codes} is {what}")
    check_engine(engine)
    for line in text.strip("\n").split("\n")[1:]:
        if len(line.strip(_OUTER).split(" ")) != 2:  # subword-nmt would end the process
            raise UserError(f"bpe: {line!r} is no merge of two units; learn the codes again")
    if engine == "fastBPE":
        words = WordCache(partial(_segment_with, _fastbpe_segmenter(text), tuple(glossaries)))
    else:
        bpe = BPE(io.StringIO(text), glossaries=list(glossaries))
        bpe.cache = _NoCache()  # words are remembered here, and it would grow without bound
        words = WordCache(lambda word: " ".join(bpe.segment_tokens([word])))
    return partial(_encode, words)


def _encode(segmented: WordCache[str], line: str) -> str:
    inner = line.strip(_OUTER)
    words = inner.split(" ")
    if "  " in inner:
        words = [word for word in words if word]
    text = " ".join(map(segmented.__getitem__, words)) if inner else ""
    if len(inner) == len(line):
        return text
    start = line.find(inner) if inner else len(line)
    return line[:start] + text + line[start + len(inner) :]  # subword-nmt keeps what stands around the words


class _NoCache(dict[str, tuple[str, ...]]):
    def __setitem__(self, word: str, pieces: tuple[str, ...]) -> None:
        pass


def _segment_with(segmenter: Callable[[str], list[str]], glossaries: Sequence[str], word: str) -> str:
    """Segment as subword-nmt does around its own segmentation: whatever a glossary matches stays whole."""
    parts = [word]
    for glossary in glossaries:
        parts = [inner for part in parts for inner in isolate_glossary(part, glossary)]
    whole = re.compile(f"^({'|'.join(glossaries)})$") if glossaries else None
    pieces = ([part] if whole is not None and whole.match(part) else segmenter(part) for part in parts)
    return f"{_SEPARATOR} ".join(chain.from_iterable(pieces))


def _fastbpe() -> Any:
    """The class of the package fastBPE."""
    try:
        from fastBPE import fastBPE
    except ImportError as error:
        raise UserError(
            "bpe: the engine fastBPE is not installed; run scripts/setup.sh --fastbpe, or use the engine subword-nmt, "
            "which gives the same text at the same speed"
        ) from error
    return fastBPE


def _fastbpe_segmenter(codes: str) -> Callable[[str], list[str]]:
    """The units of a word, by subword-nmt's codes."""
    version, *merges = codes.strip("\n").split("\n")
    if version.split() != ["#version:", "0.2"]:
        raise UserError(f"bpe: codes begin with {version!r}, expected '#version: 0.2'; use the engine subword-nmt")
    with tempfile.TemporaryDirectory(prefix="fastbpe-") as name:
        file = Path(name) / "codes"
        unique = dict.fromkeys(" ".join(merge.split()) for merge in merges)  # of repeats, the first counts
        file.write_bytes("".join(f"{merge} 1\n" for merge in unique).encode())
        bpe = _fastbpe()(str(file), "")
    return lambda word: bpe.apply([word])[0].split("@@ ")
