"""The steps and readers that a dataset's YAML may name, and what each name stands for."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import Step
from data_prep.text import (
    bpe,
    characters,
    chinese,
    clean,
    moses,
    punctuation,
    readers,
    sentencepiece,
    tokenise,
)

LINE, PAIR, BETWEEN = "line", "pair", "between"


@dataclass(frozen=True)
class Registered:
    """A step. ``make`` makes, from the parameters the YAML gives, a function of a line or of a pair."""

    kind: str
    """``line``: str -> str; ``pair``: (str, str) -> why it is dropped, or None; ``between``: see engine.py."""
    make: Callable[..., Any]
    check: Callable[..., None] | None = None
    """Of a step between shards: is given the YAML's parameters before any work begins, to refuse them."""
    then: Callable[[Step, Sequence[str], Path], list[Step]] | None = None
    """Of a step between shards: the line-wise steps that always follow it, for the languages and the work folder."""

    def build(self, language: str | None, parameters: dict[str, Any]) -> Callable[..., Any]:
        """The function for a language (of a line) or for pairs."""
        if "language" in inspect.signature(self.make).parameters:
            return self.make(language=language, **parameters)
        return self.make(**parameters)


def _line(function: Callable[[str], str]) -> Registered:
    """A step without parameters, the same for all languages."""
    return Registered(LINE, lambda: function)


READERS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "sgm": readers.sgm,
    "iwslt_tags": readers.iwslt_tags,
    "iwslt_xml": readers.iwslt_xml,
}
"""From the lines of a member to the lines of text in it; ``plain`` members are text as they are."""

DECODE = "decode"
APPLY_BPE = "apply_bpe"
APPLY_SENTENCEPIECE = "apply_sentencepiece"
CLEAN_CORPUS = "clean_corpus"
SQUEEZE = "squeeze"

STEPS: dict[str, Registered] = {
    "normalise_space": _line(clean.normalise_space),
    "normalise_punctuation": Registered(LINE, punctuation.punctuation_normaliser),
    "remove_non_printing": _line(characters.remove_non_printing),
    "strip_control": _line(chinese.strip_control),
    "straighten_apostrophes": _line(clean.straighten_apostrophes),
    "tokenise": Registered(LINE, tokenise.tokeniser),
    "segment_chinese": Registered(LINE, chinese.segmenter),
    "lowercase": _line(characters.lowercase),
    "truncate": Registered(LINE, clean.truncater),
    APPLY_BPE: Registered(LINE, bpe.encoder_from_file),
    "clean": Registered(PAIR, clean.pair_filter),
    CLEAN_CORPUS: Registered(PAIR, moses.moses_filter),
    "clean_scripts": Registered(PAIR, chinese.script_filter),
}

INNER: dict[str, Registered] = {
    DECODE: _line(str),
    SQUEEZE: _line(moses.clean_line),
    APPLY_SENTENCEPIECE: Registered(LINE, sentencepiece.encoder_from_file),
}
"""Line-wise steps that are parts of others and have no name in a YAML."""
