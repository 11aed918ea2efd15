"""Fixtures that make updates by graphs on the CPU."""

import functools
from collections.abc import Callable

import pytest

from tests.training.runs import capture_updates_on_cpu, make_updates_on_cpu


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Function that makes captured trainers run on the CPU: ``True``, as graphs on the tape; ``False``, without."""
    return functools.partial(make_updates_on_cpu, monkeypatch)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make captured trainers run their updates as graphs on the CPU's tape."""
    capture_updates_on_cpu(monkeypatch)
