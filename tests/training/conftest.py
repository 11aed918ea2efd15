"""Graphs on the CPU."""

import functools
from collections.abc import Callable

import pytest

from tests.training.runs import capture_updates_on_cpu, make_updates_on_cpu


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A function that has captured trainers make their updates on the CPU, as graphs on the tape or launched."""
    return functools.partial(make_updates_on_cpu, monkeypatch)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have captured trainers make their updates as graphs on the CPU's tape."""
    capture_updates_on_cpu(monkeypatch)
