"""Join the subwords of a prepared line to words, and words to plain text."""

import re
from collections.abc import Callable

from data_prep.dataset import Dataset
from data_prep.text.languages import CHINESE, JAPANESE, is_published, rules_of, scripts_of

# Moses joins Chinese words, but leaves spaces around the full-width marks between them
_WIDE = "\u00b7\u2014\u2018-\u201d\u2026\u3001-\u3003\u3008-\u3011\u3014-\u301f\u30fb\uff01-\uff0f\uff1a-\uff20"
_WIDE += "\uff3b-\uff40\uff5b-\uff65"
_WIDE_MARK = re.compile(f"\\s*([{_WIDE}])\\s*")

# Moses joins l'eau, but leaves spaces around a typographic apostrophe: l’eau, don’t
_APOSTROPHE = re.compile(r"(?<=[^\W\d_]) \u2019 (?=[^\W\d_])")

# Moses has rules for the stops and quotes of ASCII, „ and “. These are the stops of Greek, Armenian, Arabic, Indic
# scripts, Thai, Tibetan, Burmese, Ethiopic and Khmer.
_STOPS = "\u2026\u037e\u0387\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u0e5a\u0e5b\u0f0d-\u0f12"
_BEFORE_STOP = re.compile(f" ([{_STOPS}\u104a\u104b\u1361-\u1368\u17d4\u17d5])")
_QUOTES = re.compile(r"""^['"„“”`]+$""")
_PAIRS = re.compile("([«»‘]) (.*?) ([«»’])")


SAME_UNITS: dict[object, str | None] = {True: "subword_nmt", "@@ ": "subword_nmt", "none": None}
"""Values of fairseq's --post-process that are the same as another value; True is the flag without a value."""
_JOINED: dict[object, Callable[[str], str]] = {
    None: lambda line: " ".join(line.split()),
    "subword_nmt": lambda line: (" ".join(line.split()) + " ").replace("@@ ", "").rstrip(),
    "sentencepiece": lambda line: "".join(line.split()).replace("\u2581", " ").strip(),
}


def unit_joiner(post_process: str | bool | None) -> Callable[[str], str] | None:
    """Return a function that joins a line's subwords to words like fairseq's --post-process; None for other values."""
    return _JOINED.get(SAME_UNITS.get(post_process, post_process))


def detokeniser(language: str, dataset: Dataset) -> Callable[[str], str]:
    """Return a function from a tokenised line to plain text, by the detokeniser of Moses.

    It replaces ``&amp;`` and the like if the dataset's tokeniser wrote them. Lines of text that was never tokenised
    stay as they are. For languages without published scores it also has rules for the stops and quotes of all scripts.
    """
    if "sentencepiece" in (names := [step.name for step in dataset.steps]) and "tokenise" not in names:
        return str
    from sacremoses import MosesDetokenizer

    escaped, detokenizer = escapes(dataset), MosesDetokenizer(lang=rules_of(language))
    wide = not {*scripts_of(language)}.isdisjoint(CHINESE | JAPANESE)
    published = is_published(language)
    if not published:
        detokenizer.IS_OPEN_QUOTE = _QUOTES

    def detokenise(line: str) -> str:
        text = detokenizer.detokenize(line.split(), unescape=escaped)
        if wide:
            return _WIDE_MARK.sub(r"\1", text)
        return _APOSTROPHE.sub("\u2019", text) if published else _PAIRS.sub(r"\1\2\3", _BEFORE_STOP.sub(r"\1", text))

    return detokenise


def escapes(dataset: Dataset) -> bool:
    """Return True if the dataset's tokeniser writes ``&amp;``, which is the default of Moses."""
    return not dataset.steps or any(
        step.parameters.get("escape", True) for step in dataset.steps if step.name == "tokenise"
    )


def lowercases(dataset: Dataset, language: str) -> bool:
    """Return True if the dataset's text of a language is converted to lower case."""
    return any(language in (step.languages or (language,)) for step in dataset.steps if step.name == "lowercase")
