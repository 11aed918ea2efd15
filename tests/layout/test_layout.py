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

LAYERS = ["lightconv_plugin.ops", "lightconv_plugin.modules", "lightconv_plugin.models"]
ROOMS = ["scripts.common", "scripts.pipeline", "data_prep", "scripts.scoring"]
LATER = ["lightconv_plugin", "scripts.fairseq_io", "scripts.tables", "scripts.reproduce"]
# what of this project the files of a package may import: of layers and rooms those before it, and itself
MAY_IMPORT = {
    **{layer: ["lightconv_plugin.units", *LAYERS[: n + 1]] for n, layer in enumerate(LAYERS)},
    **{room: ROOMS[: n + 1] for n, room in enumerate(ROOMS)},
    **{room: ROOMS + LATER[: n + 1] for n, room in enumerate(LATER)},
    "lightconv_plugin": ["lightconv_plugin"],
    "scripts": ["lightconv_plugin", "scripts", "data_prep"],
}
CODE = {".py", ".sh", ".cpp", ".h", ".inl", ".cuh", ".cu"}
# the most lines of code
BUDGET = {
    "lightconv_plugin/ops": 9_500,
    "lightconv_plugin": 15_000,
    "data_prep": 4_900,
    "scripts": 7_100,
    "tests": 20_600,
}
# these name all operators: for users, and in the table of a vector width
GATHERING = ("__init__.py", "vectors.cpp")
# but these: who imports a model by name wants all that --user-dir loads; the check is a command, too
UPWARDS = {
    ("lightconv_plugin/models/__init__.py", "lightconv_plugin.register"),
    ("scripts/reproduce/__main__.py", "scripts.check.check_first"),
}


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


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_every_tracked_file_is_text():
    for path in TRACKED:
        assert "\0" not in path.read_text(encoding="utf-8"), f"{path}: data and builds are not committed"


@pytest.mark.parametrize("folder", BUDGET)
def test_a_folder_keeps_to_its_lines(folder):
    """A change that needs more says so here."""
    code = [path for path in TRACKED if ROOT / folder in path.parents and path.suffix in CODE]
    lines = sum(len(path.read_text().splitlines()) for path in code)
    assert 0.9 * BUDGET[folder] <= lines <= BUDGET[folder], f"{folder}: {lines:,} lines of code"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    files = [path for path in PYTHON if ROOT / package.replace(".", "/") in path.parents]
    assert files
    for path in files:
        for name in imported(path):
            if within(name, "lightconv_plugin", "scripts", "data_prep", "tests"):
                upwards = (str(path.relative_to(ROOT)), name) in UPWARDS
                assert upwards or within(name, *MAY_IMPORT[package]), f"{path} imports {name}"


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


def test_no_modules_import_each_other_in_a_circle():
    """Imports within functions count too."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PYTHON
        if ROOT / "tests" not in path.parents
    }
    edges: dict[str, set[str]] = {}
    for module, path in files.items():
        names = {name for name in imported(path) if (str(path.relative_to(ROOT)), name) not in UPWARDS}
        edges[module] = files.keys() & {name if name in files else name.rpartition(".")[0] for name in names}
    assert sum(map(len, edges.values())) > len(edges)
    TopologicalSorter(edges).prepare()  # its error names a circle
