"""Rules of the tree that no single module can keep."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    if name and (ROOT / name).exists()
]
PYTHON = [path for path in TRACKED if path.suffix == ".py"]

# each may import from those before it, and from itself
LAYERS = ["lightconv_plugin.ops", "lightconv_plugin.modules", "lightconv_plugin.models"]


def imported(path: Path) -> set[str]:
    """The modules that a file imports, at its top or later."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_there_is_something_to_check():
    assert len(PYTHON) > 40


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_small(path):
    lines = len(path.read_text().splitlines())
    assert lines <= 400, f"{path.name} has {lines} lines: which two things are in it?"


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_of_the_plugin_point_one_way(layer):
    folder = ROOT / layer.replace(".", "/")
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    files = [path for path in PYTHON if folder in path.parents]
    assert files
    for path in files:
        for name in imported(path):
            if within(name, "lightconv_plugin"):
                assert any(within(name, package) for package in allowed), f"{path}: {name}"


def test_the_operators_import_torch_alone():
    for path in PYTHON:
        if ROOT / "lightconv_plugin" / "ops" in path.parents:
            assert not any(within(name, "fairseq") for name in imported(path)), path


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("scripts/common", ("scripts", "data_prep", "lightconv_plugin", "tests")),
        ("data_prep", ("lightconv_plugin", "tests")),
        ("scripts", ("data_prep", "tests")),
        ("lightconv_plugin", ("scripts", "data_prep", "tests")),
    ],
)
def test_folders_do_not_reach_into_each_other(folder, forbidden):
    for path in PYTHON:
        if ROOT / folder in path.parents:
            for name in imported(path):
                reached = [package for package in forbidden if within(name, package)]
                if folder == "scripts/common" and within(name, "scripts.common"):
                    continue
                assert not reached, f"{path} imports {name}"
