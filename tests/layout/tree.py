"""The tracked files of the checkout, and the imports between its modules."""

import ast
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from data_prep.common import CHECKOUT

if not (CHECKOUT / ".git").exists():
    pytest.skip("this copy of the checkout has no .git; git lists the files", allow_module_level=True)
TRACKED = [
    CHECKOUT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    if name and (CHECKOUT / name).exists()
]
PYTHON = [path for path in TRACKED if path.suffix == ".py"]


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, at its top or later."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def within(name: str, *packages: str) -> bool:
    """Return True if a module is one of the packages or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def imports_between_modules(*, without: Collection[tuple[str, str]] = ()) -> dict[str, set[str]]:
    """Return the modules of this project that each module imports, for all modules outside the tests.

    ``without`` are pairs of a file and an import to leave out.
    """
    modules = {
        ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PYTHON
        if CHECKOUT / "tests" not in path.parents
    }
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name for name in imported(path) if (str(path.relative_to(CHECKOUT)), name) not in without}
        edges[module] = modules.keys() & {name if name in modules else name.rpartition(".")[0] for name in names}
    return edges
