"""From the words of a prepared line back to text as people write it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Moses joins Chinese words, but leaves blanks around the full-width marks between them
_WIDE_MARK = re.compile(
    "\\s*([\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65])\\s*"
)


def detokeniser(language: str, dataset: Mapping[str, Any]) -> Callable[[str], str]:
    """Moses' detokenisation, which also undoes ``&amp;`` and the like where the dataset's tokeniser wrote them; nothing
    where its text was never tokenised.
    """
    if "sentencepiece" in (names := [name for name, _ in _steps(dataset)]) and "tokenise" not in names:
        return str
    from sacremoses import MosesDetokenizer

    escaped, detokenizer = escapes(dataset), MosesDetokenizer(lang=moses_language(language))
    wide = moses_language(language) in ("zh", "ja")

    def of(line: str) -> str:
        text: str = detokenizer.detokenize(line.split(), unescape=escaped)
        return _WIDE_MARK.sub(r"\1", text) if wide else text

    return of


def detokenise(lines: Sequence[str], language: str, dataset: Mapping[str, Any]) -> list[str]:
    """``detokeniser`` of lines."""
    return list(map(detokeniser(language, dataset), lines))


def moses_language(language: str) -> str:
    """``en`` of ``en_summary``, ``zh`` of ``zh_CN``."""
    return language.partition("_")[0]


def escapes(dataset: Mapping[str, Any]) -> bool:
    """Whether the dataset's tokeniser writes ``&amp;``, which is Moses' default."""
    return any(step.get("escape", True) for name, step in _steps(dataset) if name == "tokenise")


def lowercases(dataset: Mapping[str, Any], language: str) -> bool:
    """Whether the dataset's text of a language loses its case."""
    return any(language in step.get("languages", [language]) for name, step in _steps(dataset) if name == "lowercase")


def _steps(dataset: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    steps = [step if isinstance(step, dict) else {step: {}} for step in dataset.get("steps") or []]
    return [(name, parameters or {}) for step in steps for name, parameters in step.items()]
