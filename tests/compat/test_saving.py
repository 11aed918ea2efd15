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

SAVE = checkpoint_utils.torch_persistent_save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A last checkpoint, and the newer one that is copied over it."""
    (tmp_path / "new.pt").write_bytes(b"newer than before")
    (tmp_path / "checkpoint_last.pt").write_bytes(b"before")
    return tmp_path


def copy(folder: Path) -> None:
    assert PathManager.copy(str(folder / "new.pt"), str(folder / "checkpoint_last.pt"), overwrite=True)


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
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left on device"), compat.CheckpointError)],
)
def test_a_copy_that_dies_leaves_the_last_checkpoint_as_it_was(error, seen, monkeypatch, folder):
    def half(source, target, *_):
        target.write(source.read(8))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", half)
        with pytest.raises(seen):
            copy(folder)
    assert (folder / "checkpoint_last.pt").read_bytes() == b"before"
    assert names(folder) == ["checkpoint_last.pt", "new.pt"]
    copy(folder)
    assert (folder / "checkpoint_last.pt").read_bytes() == b"newer than before"
    assert names(folder) == ["checkpoint_last.pt", "new.pt"]


def test_a_checkpoint_that_does_not_fit_is_a_sentence_and_leaves_nothing(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with file_sizes_up_to(100_000), pytest.raises(compat.CheckpointError) as caught:
        SAVE({"model": torch.zeros(100_000)}, str(folder / "checkpoint_2_16.pt"))
    message = str(caught.value)
    assert message.startswith(f"{folder / 'checkpoint_2_16.pt'}: cannot be written: File too large; nothing of it was")
    assert "checkpoint_last.pt" in message
    assert caught.value.__suppress_context__
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_another_error_is_its_own_and_gives_no_advice_to_remove_anything(folder: Path) -> None:
    (folder / "taken").mkdir()
    for write in (
        lambda: SAVE({"model": torch.zeros(1)}, str(folder / "taken")),
        lambda: PathManager.copy(str(folder / "new.pt"), str(folder / "taken"), overwrite=True),
    ):
        with pytest.raises(IsADirectoryError, match="taken"):
            write()
    assert names(folder) == ["checkpoint_last.pt", "new.pt", "taken"]


def test_training_ends_with_the_sentence_and_nothing_half_written(train: Train, tmp_path: Path) -> None:
    refused = pytest.raises(compat.CheckpointError, match=r"cannot be written: File too large")
    with file_sizes_up_to(20_000), refused:
        train(tmp_path, "--max-update", "2", "--save-interval-updates", "2")
    assert names(tmp_path) == []
