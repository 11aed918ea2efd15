"""From the units of a prepared line back to words, and from words to text as people write it."""

import re
from collections.abc import Callable, Sequence

from data_prep.dataset import Dataset
from data_prep.text.moses import moses_language

# Moses joins Chinese words, but leaves blanks around the full-width marks between them
_WIDE_MARK = re.compile(
    "\\s*([\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65])\\s*"
)

# Moses joins l'eau, but leaves blanks around the apostrophe of printed text: l’eau, don’t
_APOSTROPHE = re.compile(r"(?<=[^\W\d_]) \u2019 (?=[^\W\d_])")


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
    where its text was never tokenised.
    """
    if "sentencepiece" in (names := [step.name for step in dataset.steps]) and "tokenise" not in names:
        return str
    from sacremoses import MosesDetokenizer

    escaped, detokenizer = escapes(dataset), MosesDetokenizer(lang=moses_language(language))
    wide = moses_language(language) in ("zh", "ja")

    def of(line: str) -> str:
        text = _APOSTROPHE.sub("\u2019", detokenizer.detokenize(line.split(), unescape=escaped))
        return _WIDE_MARK.sub(r"\1", text) if wide else text

    return of


def detokenise(lines: Sequence[str], language: str, dataset: Dataset) -> list[str]:
    """``detokeniser`` of lines."""
    return list(map(detokeniser(language, dataset), lines))


def escapes(dataset: Dataset) -> bool:
    """Return True if the dataset's tokeniser writes ``&amp;``, which is Moses' default, also where others ran it."""
    return not dataset.steps or any(
        step.parameters.get("escape", True) for step in dataset.steps if step.name == "tokenise"
    )


def lowercases(dataset: Dataset, language: str) -> bool:
    """Return True if the dataset's text of a language loses its case."""
    return any(language in (step.languages or (language,)) for step in dataset.steps if step.name == "lowercase")
