"""Steps that look at one line or one pair at a time, fused: a block of lines goes through all of them at once."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from data_prep.dataset import Step
from data_prep.steps.corpus import EXAMPLES, Block, columns_of, excerpt, select
from data_prep.steps.plan import LINE, STEPS

NOT_UTF8 = "not UTF-8"


class Made(NamedTuple):
    """The result for a block, and its counts."""

    block: Block
    lines: int
    words: list[int]  # of each language
    not_utf8: int  # pairs
    steps: list[dict[str, Any]]
    """For each step lines ``in`` and ``out``, how many were ``dropped`` for each reason, and ``examples`` of these."""


def run(block: Block, *, steps: Sequence[Step], languages: Sequence[str]) -> Made:
    """Return what the steps make of a block, in a worker."""
    columns, counts = _decode(block), []
    not_utf8 = block[0].count(b"\n") - len(columns[0])
    for step in steps:
        before, dropped, examples = len(columns[0]), Counter[str](), list[list[str]]()
        parameters = json.dumps(step.parameters, sort_keys=True)
        if STEPS[step.name].kind == LINE:
            for place, name in enumerate(languages):
                if name in (step.languages or languages):
                    columns[place] = list(map(_function(step.name, name, parameters), columns[place]))
        else:
            reasons = list(map(_function(step.name, None, parameters), *columns))
            if any(reasons):
                dropped.update(filter(None, reasons))
                gone = select([*columns, reasons], [reason is not None for reason in reasons])
                examples = [[*map(excerpt, pair), reason] for *pair, reason in list(zip(*gone, strict=True))[:EXAMPLES]]
                columns = select(columns, [reason is None for reason in reasons])
        counts.append({"in": before, "out": len(columns[0]), "dropped": dict(dropped), "examples": examples})
    lines = len(columns[0])
    made = tuple("".join(f"{line}\n" for line in column).encode() for column in columns)
    if any(side.count(b"\n") != lines for side in made):
        raise AssertionError(f"one of {[step.name for step in steps]} made line breaks, or drew the sides apart")
    return Made(made, lines, [len(side.split()) for side in made], not_utf8, counts)


def _decode(block: Block) -> list[list[str]]:
    """Lines as text. Pairs with bytes that are not UTF-8 are left out: reading let none pass but to be dropped here."""
    try:
        return [side.decode().removesuffix("\n").split("\n") for side in block]
    except UnicodeDecodeError:
        rows = zip(*columns_of(block), strict=True)
        good = [row for row in rows if all(line.decode(errors="replace").encode() == line for line in row)]
        return [[row[place].decode() for row in good] for place in range(len(block))]


@lru_cache(maxsize=64)
def _function(name: str, language: str | None, parameters: str) -> Callable[..., Any]:
    """A step's function, once a process: tokenisers and merge tables take a moment to make and remember words."""
    return STEPS[name].build(language, json.loads(parameters))
