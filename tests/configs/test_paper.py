"""Every hyper-parameter that the paper states (paper.yaml) against what each configuration resolves to and builds."""

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
DEPARTURES = {(what, scope): (value, why) for what, scope, value, why in TABLE["departures"]}


def within(path: Path, scope: str) -> bool:
    """Return True if a configuration matches a pattern of the scope and none of those that begin with ``!``."""
    for known, patterns in TABLE["scopes"].items():
        scope = scope.replace(f"!${known}", f"!{patterns}").replace(f"${known}", patterns)
    patterns = scope.split()
    refused = any(fnmatch(name(path), pattern[1:]) for pattern in patterns if pattern.startswith("!"))
    return not refused and any(fnmatch(name(path), pattern) for pattern in patterns)


def departure(path: Path, stated: Stated) -> tuple[str, str] | None:
    """The key of the departure that holds for a configuration; None where the paper's value does."""
    return next((key for key in DEPARTURES if key[0] == stated.name and fnmatch(name(path), key[1])), None)


def read(built: Built, path: str) -> Any:
    """Return what stands at a dotted path of attributes and keys."""
    return functools.reduce(
        lambda at, key: at[key] if isinstance(at, Mapping) else getattr(at, key), path.split("."), built
    )


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_every_hyper_parameter_is_the_paper_s(path):
    built, wrong = Built(path), []
    for stated in STATED:
        if within(path, stated.scope):
            key = departure(path, stated)
            expected, why = (stated.value, f"{stated.section}: {stated.words}") if key is None else DEPARTURES[key]
            if (found := read(built, stated.read)) != expected:
                wrong.append(f"{stated.name} is {found}, expected {expected} ({why})")
    assert not wrong, "\n".join(wrong)


def test_how_much_is_checked():
    checks = [(stated, path) for stated in STATED for path in MODELS if within(path, stated.scope)]
    print(f"{len(STATED)} hyper-parameters, {len(MODELS)} configurations, {len(checks)} values compared")
    assert {id(stated) for stated, _ in checks} == {id(stated) for stated in STATED}
    assert {path for _, path in checks} == set(MODELS)
    assert {key for stated, path in checks if (key := departure(path, stated))} == DEPARTURES.keys()
