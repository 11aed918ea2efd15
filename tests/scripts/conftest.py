"""The fixture ``place``, a folder with stand-ins for the stages; some test files have another fixture of that name."""

import pytest

import lightconv_plugin.register  # noqa: F401  whatever other tests imported first
from tests.scripts.stand_in import Place


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)
