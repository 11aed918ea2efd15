"""Moses tokenisation through sacremoses.

sacremoses tokenises as Moses did before November 2018 (a final dot stays on an abbreviation), as in the paper's data.
Escaping (``&`` to ``&amp;`` and the like) is Moses' default, for tools to which ``|`` or ``<`` mean something.
To fairseq they do not, so a dataset may switch it off and keep its text legible.
"""

from collections.abc import Callable
from functools import partial

from sacremoses import MosesTokenizer


def moses_language(language: str) -> str:
    """The language as Moses knows it: ``zh`` of ``zh_CN``."""
    return language.partition("_")[0]


def tokeniser(*, language: str, escape: bool = True) -> Callable[[str], str]:
    """Tokenises a line; the tokens are parted by one space."""
    moses = MosesTokenizer(lang=moses_language(language))
    return partial(moses.tokenize, escape=escape, return_str=True)
