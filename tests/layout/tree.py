"""The tracked files of the checkout, and who imports whom among them."""

import ast
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from data_prep.common import CHECKOUT

if not (CHECKOUT / ".git").exists():
    pytest.skip("this copy of the checkout comes without git, which lists the files", allow_module_level=True)
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
    """Return for each module outside the tests the modules of this project that it imports.

    ``without`` has pairs of a file and what it imports that are left out.
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
