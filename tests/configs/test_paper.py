"""Compare every hyper-parameter that the paper states (paper.yaml) with each configuration's flags and built model."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.strict_yaml import read_yaml
from tests.configs.built import Built
from tests.configs.test_configs import MODELS, name

TABLE = read_yaml(Path(__file__).with_name("paper.yaml"))


@dataclass(frozen=True)
class Stated:
    """A hyper-parameter as the paper states it."""

    section: str
    words: str
    name: str
    scope: str
    value: Any
    read: str


STATED = [Stated(*row) for row in TABLE["stated"]]
DEPARTURES = {(name, scope): (value, reason) for name, scope, value, reason in TABLE["departures"]}


def within(path: Path, scope: str) -> bool:
    """Return True if a configuration matches a pattern of the scope, and none of its patterns that begin with ``!``."""
    for alias, patterns in TABLE["scopes"].items():
        scope = scope.replace(f"!${alias}", f"!{patterns}").replace(f"${alias}", patterns)
    patterns = scope.split()
    refused = any(fnmatch(name(path), pattern[1:]) for pattern in patterns if pattern.startswith("!"))
    return not refused and any(fnmatch(name(path), pattern) for pattern in patterns)


def departure(path: Path, stated: Stated) -> tuple[str, str] | None:
    """Return the key of a configuration's departure from the paper, or None if it has the paper's value."""
    return next((key for key in DEPARTURES if key[0] == stated.name and fnmatch(name(path), key[1])), None)


def read(built: Built, path: str) -> Any:
    """Return the value at a dotted path of attributes and keys."""
    return functools.reduce(
        lambda at, key: at[key] if isinstance(at, Mapping) else getattr(at, key), path.split("."), built
    )


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_every_hyper_parameter_is_the_paper_s(path):
    built, wrong = Built(path), []
    for stated in STATED:
        if within(path, stated.scope):
            key = departure(path, stated)
            expected, reason = (stated.value, f"{stated.section}: {stated.words}") if key is None else DEPARTURES[key]
            if (value := read(built, stated.read)) != expected:
                wrong.append(f"{stated.name} is {value}, expected {expected} ({reason})")
    assert not wrong, "\n".join(wrong)


def test_every_statement_and_configuration_is_checked():
    checks = [(stated, path) for stated in STATED for path in MODELS if within(path, stated.scope)]
    print(f"{len(STATED)} hyper-parameters, {len(MODELS)} configurations, {len(checks)} values compared")
    assert {id(stated) for stated, _ in checks} == {id(stated) for stated in STATED}
    assert {path for _, path in checks} == set(MODELS)
    assert {key for stated, path in checks if (key := departure(path, stated))} == DEPARTURES.keys()
