"""Graphs on the CPU."""

import functools
from collections.abc import Callable

import pytest

from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import CapturedTrainer
from tests.tape import as_operator, tape  # noqa: F401  a fixture
from tests.training.runs import updates_on_cpu


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A function that has captured trainers make their updates on the CPU, as graphs on the tape or launched."""

    def put(graphs: bool) -> None:
        monkeypatch.setattr(CapturedTrainer, "_make_updates", functools.partialmethod(updates_on_cpu, graphs=graphs))

    return put


@pytest.fixture
def graphs(tape: None, on_cpu: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Have captured trainers make their updates as graphs on the CPU's tape."""
    assert library.load() is None
    for name in ("decide", "adam"):
        monkeypatch.setattr(ending, name, as_operator(getattr(ending, name)))
    on_cpu(True)
