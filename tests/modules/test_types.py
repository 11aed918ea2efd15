"""The public API as type checkers and ``help()`` see it."""

import copy
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import nn

import lightconv_plugin.modules
from lightconv_plugin import ops
from lightconv_plugin.modules import __all__ as modules
from lightconv_plugin.ops.normalization import Normalization
from tests.modules import typed_program

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow  # with an empty cache mypy checks all of torch's types
def test_mypy_strict_accepts_a_program_that_uses_the_public_api():
    """mypy runs as in a user's project, without the settings of this one."""
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={ROOT}/.mypy_cache/strict"]
    command = [sys.executable, "-m", "mypy", *options, "tests/modules/typed_program.py"]
    mypy = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert mypy.returncode == 0, mypy.stdout + mypy.stderr


def test_the_program_runs():
    typed_program.main()


CALLS: list[Any] = [
    *(getattr(lightconv_plugin, name) for name in lightconv_plugin.__all__),
    *(getattr(lightconv_plugin.modules, name) for name in modules if name not in ("IncrementalState", "StepByStep")),
    ops.conv_step,
    ops.reorder_state,
    ops.normalize_kernel,
]


def functions_of(call: Any) -> list[Any]:
    """Return a function, or the constructor and the call of a module."""
    return [call, call.forward] if hasattr(call, "forward") else [call]


each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@each_call
def test_help_shows_every_argument_with_its_type(call):
    for function in functions_of(call):
        for name, parameter in inspect.signature(function).parameters.items():
            assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), f"{call}: {name}"
            assert name == "self" or parameter.annotation is not parameter.empty, f"{call}: {name}"
    assert inspect.getdoc(call)


@each_call
def test_docstrings_name_what_can_be_imported(call):
    """Names in double backquotes come from lightconv_plugin, its modules or ops, or torch.nn, or are arguments or
    attributes of a convolution.
    """
    values: dict[str, Any] = {"nn": nn, "copy": copy, "lightconv_plugin": lightconv_plugin}
    for owner in (lightconv_plugin, ops, lightconv_plugin.modules, lightconv_plugin.DynamicConv):
        values |= {name: getattr(owner, name) for name in dir(owner)}
    for function in functions_of(call):
        values |= inspect.signature(function).parameters
        for name in re.findall(r"``([A-Za-z_][\w.]*)(?:\([^`]*)?``", inspect.getdoc(function) or ""):
            first, *rest = name.split(".")
            value = values[first]
            for part in rest:
                value = getattr(value, part)


def test_names_of_normalisations_are_one_list():
    assert get_args(Normalization) == tuple(ops.NORMALIZATIONS)
