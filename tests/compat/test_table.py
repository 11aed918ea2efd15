"""The table in ``lightconv_plugin.compat`` lists every change and private name, and other code has none."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from fairseq.models.lstm import LSTMModel

from data_prep.common import CHECKOUT
from lightconv_plugin import compat
from lightconv_plugin.compat import internals
from tests.layout.tree import PYTHON
from tests.models import common

PACKAGES = ("lightconv_plugin", "scripts", "data_prep")
FILES = {
    path: ast.parse(path.read_text()) for path in PYTHON if path.relative_to(CHECKOUT).parts[0] in PACKAGES
}  # the files outside of the tests
SEAM = {CHECKOUT / "lightconv_plugin" / "ops" / "torch_private.py"}
SEAM |= {path for path in FILES if path.parent == CHECKOUT / "lightconv_plugin" / "compat"}
# names of Python's: in named tuples, os and sys
PYTHONS = {"_replace", "_exit", "_getframe"}
# keys in fairseq's configurations, which users write in YAML
KEYS = {"_name"}
CHANGE = r"@shim\(|setattr\(|patch\.object\(|filterwarnings|setLevel|__new__ ="
PRIVATE = re.compile(r"_(?!_)\w*[a-zA-Z]\w*")


class Row(NamedTuple):
    """A row of the table."""

    names: str
    purpose: str
    without: str
    test: str


def read_table() -> dict[str, Row]:
    """Return the rows of the table by function; several functions may share one."""
    rows: dict[str, Row] = {}
    pattern = r"^(\S.*)\n    names    (.+)\n    purpose  (.+)\n    without  (.+)\n    test     (.+)$"
    for functions, *cells in re.findall(pattern, compat.__doc__ or "", flags=re.M):
        rows |= dict.fromkeys(functions.split(", "), Row(*cells))
    return rows


TABLE = read_table()


def node_of(function: str) -> ast.AST:
    """Return the source of a function or a constant of compat, such as ``training.add_flag``."""
    module, name = function.split(".")
    for node in FILES[CHECKOUT / "lightconv_plugin" / "compat" / f"{module}.py"].body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if name in [getattr(target, "name", getattr(target, "id", None)) for target in targets]:
            return node
    raise LookupError(f"compat has no {function}")


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file gives to functions, classes, variables, and attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                yield node.id
            elif ast.unparse(node.value) in ("self", "cls"):
                yield node.attr


OURS = {name for path, tree in FILES.items() if path not in SEAM for name in bindings(tree)}


def private_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield other packages' private names in the code, with their lines: attributes, modules, strings for getattr."""
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.Attribute):
            words = [node.attr]
        elif isinstance(node, ast.Import):
            words = [word for alias in node.names for word in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            words = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.keyword):
            words = [node.arg or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("attr", ".get", "pop", "shim")):
            words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            words = [str(node.slice.value)]
        for word in words:
            if PRIVATE.fullmatch(word) and word not in OURS | PYTHONS | KEYS:
                yield word, getattr(node, "lineno", 0)


def test_private_names_stand_in_compat_and_torch_private_alone() -> None:
    assert [place for path in SEAM for place in private_names(FILES[path])], "private_names misses names"
    for path in FILES.keys() - SEAM:
        assert [f"{path}:{line}: {name}" for name, line in private_names(FILES[path])] == []


def test_our_classes_use_no_private_attribute_of_their_bases() -> None:
    """No ``self._name`` in a class of ours is also an attribute of its base class in fairseq or torch."""
    modules = [".".join(path.relative_to(CHECKOUT).with_suffix("").parts) for path in FILES.keys() - SEAM]
    checked = 0
    for module in modules:
        if not module.startswith("lightconv_plugin.") or module.endswith("__"):
            continue
        for kind in vars(importlib.import_module(module)).values():
            if not isinstance(kind, type) or kind.__module__ != module:
                continue
            uses = set(re.findall(r"\bself\.(_(?!_)\w+)", inspect.getsource(kind)))
            for base in kind.__mro__:
                if base.__module__.startswith(("torch.", "fairseq.")) and base.__module__ != "torch._C":
                    checked += 1
                    source = inspect.getsource(sys.modules[base.__module__])
                    assert uses & set(re.findall(r"\bself\.(_(?!_)\w+)", source)) == set(), kind
    assert checked > 50


def test_every_change_has_a_row() -> None:
    changes = {
        f"{path.stem}.{node.name}"
        for path in SEAM - {CHECKOUT / "lightconv_plugin" / "compat" / "shim.py"}
        if path.parent.name == "compat"
        for node in FILES[path].body
        if isinstance(node, ast.FunctionDef)
        and node.name != "apply"
        and (re.search(CHANGE, ast.unparse(node)) or any(name != "_field_type" for name, _ in private_names(node)))
    }
    assert changes | {"internals.LOSS_SCALER"} == TABLE.keys()
    applied = set(re.findall(r"(\w+\.\w+)\(\)", inspect.getsource(compat.apply)))
    assert applied <= TABLE.keys()
    elsewhere = {name for name in TABLE if name.startswith(("internals.", "training.add", "training.make"))}
    assert TABLE.keys() - applied == elsewhere | {"checkpoints.plain_types"}


@pytest.mark.parametrize("function", TABLE)
def test_a_row_is_what_the_code_does(function: str) -> None:
    row, node = TABLE[function], node_of(function)
    source = ast.unparse(node)
    names = {word for word, _ in private_names(node) if word != "_field_type"}  # a name of dataclasses
    names |= {
        str(call.args[1].value)
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("shim", "setattr", "patch.object")
        and isinstance(call.args[1], ast.Constant)
    }
    listed = re.findall(r"[\w.]+", row.names)
    for name in names:
        assert name in {word.rpartition(".")[2] for word in listed}, f"{function} uses {name}"
    for word in [word for word in listed if "." in word or PRIVATE.fullmatch(word)]:
        assert word.rpartition(".")[2] in source, f"{function} does nothing with {word}"
    path, _, test = row.test.partition("::")
    assert f"def {test}" in (CHECKOUT / path).read_text(), row.test


def test_models_are_prepared_for_inference() -> None:
    model = common.build("pla_dynamicconv_small", common.task(20), **common.SMALL)
    assert not internals.is_prepared_for_inference(model)
    model.prepare_for_inference_(Namespace(generation=Namespace()))
    assert internals.is_prepared_for_inference(model)
    assert not internals.is_prepared_for_inference(LSTMModel)
