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
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

from subword_nmt.apply_bpe import BPE, isolate_glossary
from subword_nmt.learn_bpe import learn_bpe

from data_prep.common.errors import UserError
from data_prep.common.files import stands_for

ENGINES = ("subword-nmt", "fastBPE")
_SEPARATOR = "@@"
_OUTER = "\r\n "
_WORDS = 250_000  # that are remembered: some 40 MB of units


def learn_from_counts(counts: Iterable[tuple[str, int]], *, merges: int, glossaries: Sequence[str] = ()) -> str:
    """Learn ``merges`` merge operations, fewer where no pair occurs twice any more; returns subword-nmt's codes.

    Args:
        counts: how often each word occurs. The order matters to nothing; memory grows with the number of words, not
            with the text they come from.
        merges: how many.
        glossaries: regular expressions; a word that one of them matches stays whole, and is not to cost merges.
    """
    codes, whole = io.StringIO(), [re.compile(pattern) for pattern in glossaries]
    words = (f"{word} {count}" for word, count in counts if not any(each.fullmatch(word) for each in whole))
    # subword-nmt draws a progress bar, which fills a log with repeats; and fails where no word has two characters
    with suppress(ValueError), nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        learn_bpe(words, codes, merges, is_dict=True)
    text = codes.getvalue()
    if count_merges(text) == 0:
        raise UserError("no BPE merge can be learnt: no two characters stand together twice; give more training text")
    return text


def count_merges(codes: str) -> int:
    """Return how many merges there are in subword-nmt's codes."""
    return len(codes.strip("\n").split("\n")) - 1  # the first line is the format's version


def check_engine(engine: str) -> None:
    """Refuse an engine that is not known or not installed."""
    if engine not in ENGINES:
        raise UserError(f"bpe: engine: got {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "fastBPE" and find_spec("fastBPE") is None:
        raise UserError(
            "bpe: the engine fastBPE is not installed; run scripts/setup.sh --fastbpe, or use the engine subword-nmt, "
            "which gives the same text at the same speed"
        )


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
        segment = _fastbpe_segmenter(text, glossaries)
    else:
        bpe = BPE(io.StringIO(text), glossaries=list(glossaries))
        bpe.cache = _NoCache()  # words are remembered here, and it would grow without bound

        def segment(word: str) -> str:
            return " ".join(bpe.segment_tokens([word]))

    return partial(_encode, lru_cache(_WORDS)(segment))


def _encode(segment: Callable[[str], str], line: str) -> str:
    inner = line.strip(_OUTER)
    text = " ".join(filter(None, map(segment, inner.split(" "))))
    start = len(line) - len(line.lstrip(_OUTER))
    return line[:start] + text + line[start + len(inner) :]  # subword-nmt keeps what stands around the words


class _NoCache(dict[str, tuple[str, ...]]):
    def __setitem__(self, word: str, pieces: tuple[str, ...]) -> None:
        pass


def _fastbpe_segmenter(codes: str, glossaries: Sequence[str]) -> Callable[[str], str]:
    """The units of a word by subword-nmt's codes and, around them, as subword-nmt has what a glossary matches."""
    from fastBPE import fastBPE

    version, *merges = codes.strip("\n").split("\n")
    if version.split() != ["#version:", "0.2"]:
        raise UserError(f"bpe: codes begin with {version!r}, expected '#version: 0.2'; use the engine subword-nmt")
    with tempfile.TemporaryDirectory(prefix="fastbpe-") as name:
        file = Path(name) / "codes"
        unique = dict.fromkeys(" ".join(merge.split()) for merge in merges)  # of repeats, the first counts
        file.write_bytes("".join(f"{merge} 1\n" for merge in unique).encode())
        bpe = fastBPE(str(file), "")
    whole = re.compile("|".join(glossaries) or r"(?!)")

    def segment(word: str) -> str:
        parts = [word]
        for glossary in glossaries:
            parts = [inner for part in parts for inner in isolate_glossary(part, glossary)]
        return f"{_SEPARATOR} ".join(part if whole.fullmatch(part) else bpe.apply([part])[0] for part in parts)

    return segment
