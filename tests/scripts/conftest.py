"""A folder with stand-ins for the stages; other tests here have a `place` of their own."""

import pytest

import lightconv_plugin.register  # noqa: F401  whatever other tests imported first
from tests.scripts.stand_in import Place


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)
