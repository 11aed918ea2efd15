"""Moses tokenisation through sacremoses, on as many processes as are worth starting.

sacremoses tokenises as Moses did before November 2018 (a final dot stays on an abbreviation), as in the paper's data.
Escaping (``&`` to ``&amp;`` and the like) is Moses' default, for tools to which ``|`` or ``<`` mean something.
To fairseq they do not, so a dataset may switch it off and keep its text legible.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import chain

from sacremoses import MosesTokenizer

_CHUNK = 2000  # lines a task: small enough to share out evenly, large enough to be worth sending


def moses_language(language: str) -> str:
    """The language as Moses knows it: ``zh`` of ``zh_CN``."""
    return language.partition("_")[0]


def tokenise(lines: Sequence[str], *, language: str, escape: bool, workers: int = 1) -> list[str]:
    """Tokenise lines; the tokens are parted by one space."""
    return in_chunks(partial(_tokenise, language=moses_language(language), escape=escape), lines, workers=workers)


def in_chunks(
    work: Callable[[Sequence[str]], list[str]], lines: Sequence[str], *, workers: int = 1, size: int = _CHUNK
) -> list[str]:
    """Apply a picklable function to chunks of lines, on several processes if there are enough; order stays."""
    chunks = list(_chunks(lines, size))
    workers = min(workers, len(chunks))
    if workers <= 1:
        return list(chain.from_iterable(map(work, chunks)))
    with ProcessPoolExecutor(workers) as pool:
        return list(chain.from_iterable(pool.map(work, chunks)))


def available_processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunks(lines: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(lines), size):
        yield lines[start : start + size]


@cache
def _tokeniser(language: str) -> MosesTokenizer:
    return MosesTokenizer(lang=language)


def _tokenise(lines: Sequence[str], *, language: str, escape: bool) -> list[str]:
    tokeniser = _tokeniser(language)
    return [tokeniser.tokenize(line, escape=escape, return_str=True) for line in lines]
