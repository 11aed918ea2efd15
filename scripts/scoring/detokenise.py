"""From the units of a prepared line back to words, and from words to text as people write it."""

import re
from collections.abc import Callable

from data_prep.dataset import Dataset
from data_prep.text.languages import CHINESE, JAPANESE, is_published, rules_of, scripts_of

# Moses joins Chinese words, but leaves blanks around the full-width marks between them
_WIDE = "\u00b7\u2014\u2018-\u201d\u2026\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20"
_WIDE += "\uff3b-\uff40\uff5b-\uff65"
_WIDE_MARK = re.compile(f"\\s*([{_WIDE}])\\s*")

# Moses joins l'eau, but leaves blanks around the apostrophe of printed text: l’eau, don’t
_APOSTROPHE = re.compile(r"(?<=[^\W\d_]) \u2019 (?=[^\W\d_])")

# Moses knows the stops and quotes of ASCII, „ and “. These are of Greek, Armenian, Arabic, Indic, Thai, Tibetan,
# Burmese, Ethiopic and Khmer.
_STOPS = "\u2026\u037e\u0387\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u0e5a\u0e5b\u0f0d-\u0f12"
_BEFORE_STOP = re.compile(f" ([{_STOPS}\u104a\u104b\u1361-\u1368\u17d4\u17d5])")
_QUOTES = re.compile(r"""^['"„“”`]+$""")
_PAIRS = re.compile("([«»‘]) (.*?) ([«»’])")


SAME_UNITS: dict[object, str | None] = {True: "subword_nmt", "@@ ": "subword_nmt", "none": None}
"""Values of fairseq's --post-process that mean the same units as another; True: the flag alone."""
_JOINED: dict[object, Callable[[str], str]] = {
    None: lambda line: " ".join(line.split()),
    "subword_nmt": lambda line: (" ".join(line.split()) + " ").replace("@@ ", "").rstrip(),
    "sentencepiece": lambda line: "".join(line.split()).replace("\u2581", " ").strip(),
}


def unit_joiner(post_process: str | bool | None) -> Callable[[str], str] | None:
    """Return what joins the units of a line to words as fairseq's --post-process does; None if only fairseq knows."""
    return _JOINED.get(SAME_UNITS.get(post_process, post_process))


def detokeniser(language: str, dataset: Dataset) -> Callable[[str], str]:
    """Moses' detokenisation, which also undoes ``&amp;`` and the like where the dataset's tokeniser wrote them; nothing
    where its text was never tokenised. In languages without published figures it knows the stops and quotes of
    all scripts.
    """
    if "sentencepiece" in (names := [step.name for step in dataset.steps]) and "tokenise" not in names:
        return str
    from sacremoses import MosesDetokenizer

    escaped, detokenizer = escapes(dataset), MosesDetokenizer(lang=rules_of(language))
    wide = not {*scripts_of(language)}.isdisjoint(CHINESE | JAPANESE)
    known = is_published(language)
    if not known:
        detokenizer.IS_OPEN_QUOTE = _QUOTES

    def of(line: str) -> str:
        text = detokenizer.detokenize(line.split(), unescape=escaped)
        if wide:
            return _WIDE_MARK.sub(r"\1", text)
        return _APOSTROPHE.sub("\u2019", text) if known else _PAIRS.sub(r"\1\2\3", _BEFORE_STOP.sub(r"\1", text))

    return of


def escapes(dataset: Dataset) -> bool:
    """Return True if the dataset's tokeniser writes ``&amp;``, which is Moses' default, also where others ran it."""
    return not dataset.steps or any(
        step.parameters.get("escape", True) for step in dataset.steps if step.name == "tokenise"
    )


def lowercases(dataset: Dataset, language: str) -> bool:
    """Return True if the dataset's text of a language loses its case."""
    return any(language in (step.languages or (language,)) for step in dataset.steps if step.name == "lowercase")
