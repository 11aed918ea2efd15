"""Checkpoints as they are written: whole or not at all, and a full disk is a sentence."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from lightconv_plugin import compat

from .conftest import Train, names


@contextmanager
def file_sizes_up_to(limit: int) -> Iterator[None]:
    """A limit on the size of files, which stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), compat.CheckpointError),
        (IsADirectoryError(21, "Is a directory"), IsADirectoryError),  # of which no advice to remove anything is given
    ],
)
def test_a_copy_that_dies_leaves_the_last_checkpoint_as_it_was(error, seen, monkeypatch, tmp_path):
    def copy() -> None:
        assert PathManager.copy(str(tmp_path / "new.pt"), str(tmp_path / "checkpoint_last.pt"), overwrite=True)

    def half(source, target, *_):
        target.write(source.read(8))
        raise error

    (tmp_path / "new.pt").write_bytes(b"newer than before")
    (tmp_path / "checkpoint_last.pt").write_bytes(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", half)
        with pytest.raises(seen):
            copy()
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == b"before"
    copy()
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == b"newer than before"
    assert names(tmp_path) == ["checkpoint_last.pt", "new.pt"]


def test_a_checkpoint_that_does_not_fit_is_a_sentence_and_leaves_nothing(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_2_16.pt"
    with file_sizes_up_to(100_000), pytest.raises(compat.CheckpointError) as caught:
        checkpoint_utils.torch_persistent_save({"model": torch.zeros(100_000)}, str(path))
    assert str(caught.value).startswith(f"{path}: cannot be written: File too large; nothing of it was left behind")
    assert "checkpoint_last.pt" in str(caught.value)
    with file_sizes_up_to(20_000), pytest.raises(compat.CheckpointError, match="cannot be written: File too large"):
        train(tmp_path, "--max-update", "2", "--save-interval-updates", "2")
    assert names(tmp_path) == []
