"""Leave out the pairs that would teach nothing: empty, very long, unevenly long, or seen before."""

from collections import Counter
from collections.abc import Iterable

Pair = tuple[str, str]


def normalise_space(line: str) -> str:
    """One plain space between words, none around them.

    Unicode knows a dozen spaces and line separators (U+0085, U+2028); tools disagree on which of them end a line, so
    none may reach a file of which line n must match line n of another.
    """
    return " ".join(line.split())


def clean(
    pairs: Iterable[Pair],
    *,
    min_words: int,
    max_words: int,
    max_ratio: float,
    deduplicate: bool,
    dropped: Counter[str],
) -> list[Pair]:
    """Keep pairs with ``min_words`` to ``max_words`` words a side and a length ratio below ``max_ratio``, in order.

    Words are what spaces part. ``dropped`` counts the others, each by the first reason that applies.
    """
    kept: list[Pair] = []
    seen: set[Pair] = set()
    for raw_source, raw_target in pairs:
        pair = normalise_space(raw_source), normalise_space(raw_target)
        shorter, longer = sorted(len(side.split()) for side in pair)
        if shorter == 0:
            dropped["empty"] += 1
        elif shorter < min_words:
            dropped[f"fewer than {min_words} words"] += 1
        elif longer > max_words:
            dropped[f"more than {max_words} words"] += 1
        elif longer >= max_ratio * shorter:
            dropped[f"length ratio of {max_ratio:g} or more"] += 1
        elif deduplicate and pair in seen:
            dropped["duplicate"] += 1
        else:
            seen.add(pair)
            kept.append(pair)
    return kept
