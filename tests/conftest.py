"""The state that every test starts from, whichever ran before it in the same process."""

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from scripts.common.process import environment
from tests.forks import executable

os.environ.update(environment())  # commands of this project are modules, and tests start them from any folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cuda", help="device of the tests in tests/gpu; cpu rehearses them")


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported stays: collections need not look at it, nor copy it in processes that are forked


@pytest.fixture(autouse=True)
def loggers_as_new() -> None:
    """Undo what commands of this project do to loggers: they are processes of their own otherwise."""
    for name in ("fairseq", "hydra", "lightconv_plugin", "matplotlib"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def forking_python() -> Iterator[str]:
    with executable() as path:
        yield path


@pytest.fixture(scope="module")
def forks(forking_python: str) -> Iterator[None]:
    """Have Python processes forked rather than started, for tests to which that makes no difference (forks.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forking_python)
        yield
