"""Checkpoints are written completely or not at all, and the error for a full disk names the file."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest
from fairseq.file_io import PathManager

from .conftest import Train, names


def test_a_copy_that_dies_leaves_the_last_checkpoint_as_it_was(monkeypatch, tmp_path):
    def copy() -> None:
        assert PathManager.copy(str(tmp_path / "new.pt"), str(tmp_path / "checkpoint_last.pt"), overwrite=True)

    def half(source, target, *_):
        target.write(source.read(8))
        raise KeyboardInterrupt

    (tmp_path / "new.pt").write_bytes(b"newer than before")
    (tmp_path / "checkpoint_last.pt").write_bytes(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", half)
        with pytest.raises(KeyboardInterrupt):
            copy()
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == b"before"
    copy()
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == b"newer than before"
    assert names(tmp_path) == ["checkpoint_last.pt", "new.pt"]


def test_a_checkpoint_that_does_not_fit_is_named_and_leaves_nothing(train: Train, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'checkpoint_1_2.pt'}'"):
            train(tmp_path, "--max-update", "2", "--save-interval-updates", "2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []
