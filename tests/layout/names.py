"""Count filler names, which do not say what a value is (such as ``found`` and ``each``), by folder and by name.

usage: python -m tests.layout.names [--all]     --all: print every place, too
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data_prep.common import CHECKOUT
from tests.layout.tree import PYTHON

FILLERS = {
    *("after", "another", "before", "done", "each", "everything", "found", "given", "how", "kept", "known", "left"),
    *("nothing", "one", "other", "others", "own", "said", "some", "something", "taken", "that", "there", "these"),
    *("they", "this", "those", "told", "two", "wanted", "what", "which", "whole"),
}
MOST = 0.01
"""Largest share of fillers among all names that is allowed."""


def bindings(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each name that a file binds, with its line: of variables, parameters, attributes of self and functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def count(show: bool = False) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Return the number of names in each folder, and the fillers among them; ``show`` prints where each filler is."""
    totals: Counter[str] = Counter()
    fillers: dict[str, Counter[str]] = {}
    for path in PYTHON:
        relative = path.relative_to(CHECKOUT)
        folder = "/".join(relative.parts[: min(2, len(relative.parts) - 1)])
        for name, line in bindings(path):
            totals[folder] += 1
            if name.strip("_") in FILLERS:
                fillers.setdefault(folder, Counter())[name.strip("_")] += 1
                if show:
                    print(f"{relative}:{line}: {name}")
    return totals, fillers


def main(argv: list[str]) -> None:
    totals, fillers = count(show=argv == ["--all"])
    for folder, total in sorted(totals.items()):
        names = fillers.get(folder, Counter())
        common = ", ".join(f"{name} {number}" for name, number in names.most_common(6))
        print(f"{folder:28}{names.total():5} of {total:6,} names  {names.total() / total:6.1%}  {common}".rstrip())
    number = sum(names.total() for names in fillers.values())
    print(f"{'all':28}{number:5} of {totals.total():6,} names  {number / totals.total():6.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
