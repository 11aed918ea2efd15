"""Rules of the tree that no single module can keep."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / ".git").exists():
    pytest.skip("this copy of the checkout comes without git, which lists the files", allow_module_level=True)
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
ROOMS = [
    "scripts.common",
    "scripts.pipeline",
    "data_prep",
    "scripts.scoring",
    "scripts.fairseq_io",
    "scripts.tables",
    "scripts.reproduce",
]
LAYERS = ["lightconv_plugin.ops", "lightconv_plugin.modules", "lightconv_plugin.models"]
CODE = {".py", ".sh", ".cpp", ".h", ".inl", ".cuh", ".cu"}
# the most lines of code
BUDGET = {
    "lightconv_plugin/ops": 10_400,
    "lightconv_plugin": 17_400,
    "data_prep": 5_650,
    "scripts": 9_300,
    "tests": 27_100,
}
# these name all operators: for users, and in the table of a vector width
GATHERING = ("__init__.py", "vectors.cpp")
# but this: who imports a model by name wants all that --user-dir loads
UPWARDS = ("lightconv_plugin/models/__init__.py", "lightconv_plugin.register")


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


def test_every_tracked_file_is_text():
    for path in TRACKED:
        assert "\0" not in path.read_text(encoding="utf-8"), f"{path}: data and builds are not committed"


@pytest.mark.parametrize("folder", BUDGET)
def test_a_folder_keeps_to_its_lines(folder):
    """A change that needs more says so here."""
    code = [path for path in TRACKED if ROOT / folder in path.parents and path.suffix in CODE]
    lines = sum(len(path.read_text().splitlines()) for path in code)
    assert 0.9 * BUDGET[folder] <= lines <= BUDGET[folder], f"{folder}: {lines:,} lines of code"


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_of_the_plugin_point_one_way(layer):
    folder = ROOT / layer.replace(".", "/")
    allowed = [*LAYERS[: LAYERS.index(layer) + 1], "lightconv_plugin.units"]  # which needs Python alone
    files = [path for path in PYTHON if folder in path.parents]
    assert files
    for path in files:
        for name in imported(path):
            if within(name, "lightconv_plugin") and (str(path.relative_to(ROOT)), name) != UPWARDS:
                assert any(within(name, package) for package in allowed), f"{path}: {name}"


def test_the_papers_operators_are_read_without_the_fused_ones():
    """``ops/fused`` and ``csrc/*/fused`` build on LightConv and DynamicConv, never the other way."""
    files = [path for path in TRACKED if ROOT / "lightconv_plugin" / "ops" in path.parents]
    own = [path for path in files if "fused" not in path.parts and path.name not in GATHERING]
    assert 0 < len(own) < len(files)
    for path in own:
        if path.suffix == ".py":
            assert not [name for name in imported(path) if within(name, "lightconv_plugin.ops.fused")], path
        else:
            assert not re.findall(r'#include ".*fused/.*"', path.read_text()), path


@pytest.mark.parametrize("layer", ["ops", "modules"])
def test_operators_and_modules_import_torch_alone(layer):
    own = (*sys.stdlib_module_names, "torch", "lightconv_plugin")
    files = [path for path in PYTHON if ROOT / "lightconv_plugin" / layer in path.parents]
    assert files
    for path in files:
        assert {name for name in imported(path) if name.split(".")[0] not in own} == set(), path


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("lightconv_plugin", ("scripts", "data_prep", "tests")),
        ("data_prep", ("lightconv_plugin", "tests")),
        ("scripts", ("tests",)),
    ],
)
def test_folders_do_not_reach_into_each_other(folder, forbidden):
    files = [path for path in PYTHON if ROOT / folder in path.parents]
    assert files
    for path in files:
        for name in imported(path):
            assert not [package for package in forbidden if within(name, package)], f"{path} imports {name}"


@pytest.mark.parametrize("room", ROOMS)
def test_imports_of_the_scripts_point_one_way(room):
    """In one line: common <- pipeline <- data_prep <- scoring <- fairseq_io <- tables <- reproduce <- commands."""
    folder, allowed = ROOT / room.replace(".", "/"), ROOMS[: ROOMS.index(room) + 1]
    files = [path for path in PYTHON if folder in path.parents]
    assert files
    for path in files:
        for name in imported(path):
            if within(name, "scripts") or within(name, "data_prep"):
                others = ["scripts.check"] if path == ROOT / "scripts/reproduce/__main__.py" else []  # a command, too
                assert any(within(name, package) for package in [*allowed, *others]), f"{path}: {name}"


def test_no_modules_import_each_other_in_a_circle():
    """Imports within functions count too."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PYTHON
        if ROOT / "tests" not in path.parents
    }
    edges: dict[str, set[str]] = {}
    for module, path in files.items():
        names = {name for name in imported(path) if (path.relative_to(ROOT).as_posix(), name) != UPWARDS}
        edges[module] = files.keys() & {name if name in files else name.rpartition(".")[0] for name in names}
    assert sum(map(len, edges.values())) > len(edges)
    TopologicalSorter(edges).prepare()  # its error names a circle
