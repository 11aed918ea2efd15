"""The steps and readers that a dataset's YAML may name, and what each name stands for."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from data_prep.text import bpe, characters, clean, pending, tokenise, truncate

LINE, PAIR, BETWEEN = "line", "pair", "between"


@dataclass(frozen=True)
class Registered:
    """A step. ``make`` makes, from the parameters the YAML gives, a function of a line or of a pair."""

    kind: str
    """``line``: str -> str; ``pair``: (str, str) -> why it is dropped, or None; ``between``: see engine.py."""
    make: Callable[..., Any]

    def build(self, language: str | None, parameters: dict[str, Any]) -> Callable[..., Any]:
        """The function for a language (of a line) or for pairs."""
        if "language" in inspect.signature(self.make).parameters:
            return self.make(language=language, **parameters)
        return self.make(**parameters)


READERS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "sgm": pending.sgm,
    "iwslt_tags": pending.tags,
    "iwslt_xml": pending.sgm,
}
"""From the lines of a member to the lines of text in it; ``plain`` members are text as they are."""

DECODE = "decode"
APPLY_BPE = "apply_bpe"

STEPS: dict[str, Registered] = {
    DECODE: Registered(LINE, lambda: str),
    APPLY_BPE: Registered(LINE, bpe.encoder_from_file),
    "normalise_space": Registered(LINE, clean.space_normaliser),
    "tokenise": Registered(LINE, tokenise.tokeniser),
    "normalise_punctuation": Registered(LINE, pending.punctuation),
    "remove_non_printing": Registered(LINE, characters.non_printing_remover),
    "strip_control": Registered(LINE, pending.control),
    "straighten_apostrophes": Registered(LINE, pending.apostrophes),
    "lowercase": Registered(LINE, characters.lowercaser),
    "segment_chinese": Registered(LINE, pending.chinese),
    "clean_scripts": Registered(PAIR, pending.scripts),
    "clean_corpus": Registered(PAIR, pending.corpus),
    "truncate": Registered(LINE, truncate.truncater),
    "clean": Registered(PAIR, clean.pair_filter),
}
