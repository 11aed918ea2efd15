"""The state that every test starts from, whichever ran before it in the same process."""

import logging
import os

import pytest

from scripts.common.process import environment

os.environ.update(environment())  # commands of this project are modules, and tests start them from any folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cuda", help="device of the tests in tests/gpu; cpu rehearses them")


@pytest.fixture(autouse=True)
def loggers_as_new() -> None:
    """Undo what commands of this project do to loggers: they are processes of their own otherwise."""
    for name in ("fairseq", "hydra", "lightconv_plugin", "matplotlib"):
        logging.getLogger(name).setLevel(logging.NOTSET)
