"""Rules for all files of the checkout."""

import re
import sys
from graphlib import TopologicalSorter

import pytest

from data_prep.common import CHECKOUT
from tests.layout import names
from tests.layout.tree import PYTHON, TRACKED, imported, imports_between_modules, within

LAYERS = ["lightconv_plugin.ops", "lightconv_plugin.modules", "lightconv_plugin.models"]
ROOMS = ["data_prep.common", "data_prep"]
SCRIPTS = ["scripts.config", "scripts.scoring", "scripts.fairseq_io", "scripts.tables", "scripts.reproduce"]
# the modules of this project that a package's files may import: a layer or room imports itself and those before it
MAY_IMPORT = {
    **{layer: ["lightconv_plugin.units", *LAYERS[: n + 1]] for n, layer in enumerate(LAYERS)},
    **{room: ROOMS[: n + 1] for n, room in enumerate(ROOMS)},
    **{room: [*ROOMS, "lightconv_plugin", *SCRIPTS[: n + 1]] for n, room in enumerate(SCRIPTS)},
    "lightconv_plugin": ["lightconv_plugin"],
    "scripts": [*ROOMS, "lightconv_plugin", "scripts"],
}
# files that list all operators: for users, and for a vector width
GATHERING = ("__init__.py", "vectors.cpp")
# the exception: the check is also a command
UPWARDS = {("scripts/reproduce/__main__.py", "scripts.check.check_first")}


def test_every_tracked_file_is_text():
    for path in TRACKED:
        assert "\0" not in path.read_text(encoding="utf-8"), f"{path}: data and builds are not committed"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    place = CHECKOUT / package.replace(".", "/")
    files = [path for path in PYTHON if path == place.with_suffix(".py") or place in path.parents]
    assert files
    for path in files:
        for name in imported(path):
            if within(name, "lightconv_plugin", "scripts", "data_prep", "tests"):
                upwards = (str(path.relative_to(CHECKOUT)), name) in UPWARDS
                assert upwards or within(name, *MAY_IMPORT[package]), f"{path} imports {name}"


def test_the_papers_operators_do_not_use_the_fused_ones():
    """``ops/fused`` and ``csrc/*/fused`` build on LightConv and DynamicConv, never the other way."""
    files = [path for path in TRACKED if CHECKOUT / "lightconv_plugin" / "ops" in path.parents]
    unfused = [path for path in files if "fused" not in path.parts and path.name not in GATHERING]
    assert 0 < len(unfused) < len(files)
    for path in unfused:
        if path.suffix == ".py":
            assert not [name for name in imported(path) if within(name, "lightconv_plugin.ops.fused")], path
        else:
            assert not re.findall(r'#include ".*fused/.*"', path.read_text()), path


@pytest.mark.parametrize("layer", ["ops", "modules"])
def test_operators_and_modules_import_torch_alone(layer):
    allowed = (*sys.stdlib_module_names, "torch", "lightconv_plugin")
    files = [path for path in PYTHON if CHECKOUT / "lightconv_plugin" / layer in path.parents]
    assert files
    for path in files:
        assert {name for name in imported(path) if name.split(".")[0] not in allowed} == set(), path


def test_no_modules_import_each_other_in_a_circle():
    """Imports within functions count too."""
    edges = imports_between_modules(without=UPWARDS)
    assert sum(map(len, edges.values())) > len(edges)
    TopologicalSorter(edges).prepare()  # its error names a circle


def test_names_say_what_they_hold():
    """Names such as ``found`` say nothing about the value. ``python -m tests.layout.names --all`` lists them."""
    totals, fillers = names.count()
    assert sum(folder.total() for folder in fillers.values()) < names.MOST * totals.total()
