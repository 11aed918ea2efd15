"""A stand-in checkout for the tests of reproduce.py; other tests here have a `place` of their own."""

import shutil
from pathlib import Path

import pytest

import lightconv_plugin.register  # noqa: F401  whatever other tests imported first
from tests.scripts.stand_in import ONE_SEED, Place


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    place = Place(tmp_path_factory.mktemp("finished"))
    status, out, err = place.run()
    assert status == 0, err
    assert place.ran() == ONE_SEED
    assert "all stages are done" in out
    return place.folder


@pytest.fixture
def place(finished, tmp_path):
    """A copy of a checkout in which everything is done; configuration and folders keep their paths relative to it."""
    shutil.copytree(finished, tmp_path / "copy")
    copied = object.__new__(Place)
    copied.folder, copied.ran_file = tmp_path / "copy", tmp_path / "copy" / "ran"
    return copied
