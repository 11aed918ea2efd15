"""From the words of a prepared line back to text as people write it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def detokeniser(language: str, *, escaped: bool) -> Callable[[str], str]:
    """Moses' detokenisation; ``escaped``: the preparation wrote ``&amp;`` for ``&`` and so on, which is undone."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=moses_language(language))
    return lambda line: detokenizer.detokenize(line.split(), unescape=escaped)


def detokenise(lines: Sequence[str], language: str, *, escaped: bool) -> list[str]:
    """``detokeniser`` of lines."""
    return list(map(detokeniser(language, escaped=escaped), lines))


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
