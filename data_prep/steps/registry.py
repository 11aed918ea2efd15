"""The steps and readers that a dataset's YAML may name, and what each name stands for."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import Step
from data_prep.text import bpe, characters, chinese, clean, moses, punctuation, readers, sentencepiece, tokenise

LINE, PAIR, CORPUS = "line", "pair", "corpus"


@dataclass(frozen=True)
class Registered:
    """A step. ``make`` makes its function from the parameters the YAML gives, and refuses what these cannot be."""

    kind: str
    """``line``: str -> str; ``pair``: (str, str) -> why it is dropped, or None; ``corpus``: ``context.CorpusStep``."""
    make: Callable[..., Any]
    then: Callable[[Step, Sequence[str], Path], list[Step]] | None = None
    """Of a step of the whole corpus: the line-wise steps that always follow, for the languages and the work folder."""

    def build(self, language: str | None, parameters: dict[str, Any]) -> Callable[..., Any]:
        """The function for a language (of a line) or for pairs."""
        if "language" in inspect.signature(self.make).parameters:
            return self.make(language=language, **parameters)
        return self.make(**parameters)


def without_parameters(kind: str, function: Callable[..., Any]) -> Registered:
    """A step that is the same for all languages."""
    return Registered(kind, lambda: function)


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
    "normalise_space": without_parameters(LINE, clean.normalise_space),
    "normalise_punctuation": Registered(LINE, punctuation.punctuation_normaliser),
    "remove_non_printing": without_parameters(LINE, characters.remove_non_printing),
    "strip_control": without_parameters(LINE, chinese.strip_control),
    "straighten_apostrophes": without_parameters(LINE, clean.straighten_apostrophes),
    "tokenise": Registered(LINE, tokenise.tokeniser),
    "segment_chinese": Registered(LINE, chinese.segmenter),
    "lowercase": without_parameters(LINE, characters.lowercase),
    "truncate": Registered(LINE, clean.truncater),
    APPLY_BPE: Registered(LINE, bpe.encoder_from_file),
    "clean": Registered(PAIR, clean.pair_filter),
    CLEAN_CORPUS: Registered(PAIR, moses.moses_filter),
    "clean_scripts": Registered(PAIR, chinese.script_filter),
}

INNER: dict[str, Registered] = {
    DECODE: without_parameters(LINE, str),
    SQUEEZE: without_parameters(LINE, moses.clean_line),
    APPLY_SENTENCEPIECE: Registered(LINE, sentencepiece.encoder_from_file),
}
"""Line-wise steps that are parts of others and have no name in a YAML."""
