"""The checkpoints of --save-interval-updates at updates that end an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fairseq import options as fairseq_options
from fairseq.file_io import PathManager

from scripts.fairseq_io.checkpoint_schedule import kept_checkpoints

from .conftest import Train, names

EPOCH = 4  # updates: 200 pairs in batches of 50


def every(updates: int, *more: str) -> list[str]:
    batches = ["--batch-size", "50", "--max-tokens", "3000", "--required-batch-size-multiple", "1"]
    return [*batches, "--save-interval-updates", str(updates), "--max-epoch", "3", *more]


def test_every_interval_leaves_its_checkpoint_and_counts_as_kept(train: Train, tmp_path: Path) -> None:
    train(tmp_path, *every(2, "--keep-interval-updates", "3", "--disable-validation"))
    last = ["checkpoint_2_8.pt", "checkpoint_3_10.pt", "checkpoint_3_12.pt"]
    assert names(tmp_path) == sorted([*last, "checkpoint_last.pt"])
    assert (tmp_path / last[-1]).read_bytes() == (tmp_path / "checkpoint_last.pt").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        "--save-interval-updates 4 --keep-interval-updates 2",
        "--save-interval-updates 2 --keep-interval-updates 1 --keep-interval-updates-pattern 4 --save-interval 3",
        "--save-interval-updates 5 --keep-last-epochs 1",
        "--save-interval-updates 3 --validate-after-updates 6 --max-update 10",
    ],
)
def test_fairseq_keeps_the_checkpoints_that_were_predicted(options: str, train: Train, tmp_path: Path) -> None:
    """scripts.check relies on the prediction."""
    arguments = every(1, *options.split())
    flags = ["no-data", "--arch", "transformer", *arguments]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), flags)
    train(tmp_path, *arguments, epochs=True)
    last = args.max_update or 3 * EPOCH
    updates = [f"checkpoint_{-(-n // EPOCH)}_{n}.pt" for n in kept_checkpoints("update", args, last)]
    epochs = [f"checkpoint{n}.pt" for n in kept_checkpoints("epoch", args, last // EPOCH)]
    assert names(tmp_path) == sorted([*updates, *epochs, "checkpoint_best.pt", "checkpoint_last.pt"])


def test_patience_counts_the_validations_of_every_interval_and_over_a_pause(train: Train, tmp_path: Path) -> None:
    """The model learns nothing: the first validation is the best, and three more end the training."""
    options = [*every(2, "--validate-interval-updates", "2", "--lr", "0", "--patience", "3"), "--max-epoch", "9"]
    options += ["--save-interval", "1000", "--validate-interval", "1000"]  # not at the end of epochs
    assert len(train(tmp_path / "whole", *options)) == 8
    assert len(train(tmp_path / "paused", *options, "--max-update", "4")) == 4
    assert len(train(tmp_path / "paused", *options)) == 4


def test_a_kill_between_the_copies_loses_none_of_them(
    monkeypatch: pytest.MonkeyPatch, train: Train, tmp_path: Path
) -> None:
    """checkpoint_last.pt is written last: a killed training resumes from the older one, and writes the others again."""
    copy = PathManager.copy
    died: list[str] = []

    def dies(source: str, target: str, **more: Any) -> Any:
        if target.endswith("checkpoint_last.pt") and source.endswith(f"_2_{2 * EPOCH}.pt") and not died:
            died.append(target)
            raise KeyboardInterrupt
        return copy(source, target, **more)

    options = every(EPOCH, "--disable-validation")
    uninterrupted = train(tmp_path / "whole", *options)
    monkeypatch.setattr(PathManager, "copy", staticmethod(dies))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", *options)
    losses = train(tmp_path / "killed", *options)
    assert died
    assert losses == uninterrupted[EPOCH:]
    assert names(tmp_path / "killed") == names(tmp_path / "whole")
