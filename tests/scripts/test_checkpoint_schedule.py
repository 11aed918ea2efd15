"""The arithmetic of the checkpoints; that fairseq keeps just these: tests/compat/test_intervals.py."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from scripts.common.errors import UserError
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints, final, updates_in_epoch
from scripts.pipeline.config import Config

DEFAULTS = {
    "max_update": 40,
    "max_epoch": 0,
    "save_interval": 1,
    "save_interval_updates": 0,
    "keep_interval_updates": -1,
    "keep_interval_updates_pattern": -1,
    "keep_last_epochs": -1,
    "no_epoch_checkpoints": False,
    "validate_after_updates": 0,
    "disable_validation": False,
    "update_freq": [1],
    "skip_remainder_batch": False,
}


def parsed(**settings: Any) -> Namespace:
    return Namespace(**DEFAULTS | settings)


def config(last: int = 3, by: str = "update", **more: Any) -> Config:
    average = {"by": by, "last": last} if last else {}
    return Config(Path("model.yaml"), "model", "toy", [1], average=average, **more)


def refusal(settings: Config, args: Namespace, updates: int | None = None) -> str:
    with pytest.raises(UserError) as refused:
        check_checkpoints(settings, args, updates_in_epoch(updates, args) if updates else None)
    return str(refused.value)


EVERY, KEEP, AFTER = "save_interval_updates", "keep_interval_updates", "validate_after_updates"


def test_what_is_there_is_taken():
    assert check_checkpoints(config(), parsed(**{EVERY: 10, KEEP: 3})) is None
    assert check_checkpoints(config(), parsed(**{EVERY: 10, AFTER: 20})) is None  # that of update 20 too
    assert check_checkpoints(config(by="epoch"), parsed(), lambda epoch: 13) is None
    assert check_checkpoints(config(by="epoch"), parsed()) is None  # how long an epoch is nobody knows yet
    assert check_checkpoints(config(last=0), parsed()) is None
    said = str(check_checkpoints(config(last=2), parsed(**{EVERY: 16})))
    assert said.startswith("the last checkpoint averaged will be that of update 32 of 40;")


@pytest.mark.parametrize(
    ("settings", "args", "said"),
    [
        (
            config(),
            {EVERY: 16},
            "of 40 updates will have kept 2 (16, 32); ask for fewer, or change train.save-interval",
        ),
        (config(), {}, "of 40 updates will have kept none; ask for fewer, or change train.save-interval-updates (0), "),
        (config(), {"max_update": 0, "max_epoch": 3}, "but a training will have kept none; ask for fewer"),
        (config(), {EVERY: 5, KEEP: 2}, "kept 2 (35, 40); ask for fewer"),
        (config(tune={"last": [1, 5]}), {EVERY: 20, KEEP: 1}, "`tune.last` asks for 5 checkpoints by update, but a"),
        (config(), {EVERY: 10, AFTER: 25}, "kept 2 (30, 40); ask for fewer"),
        (config(by="epoch"), {"no_epoch_checkpoints": True}, "train.no-epoch-checkpoints (True), "),
        (config(by="epoch"), {"keep_last_epochs": 2}, "kept 2; ask for fewer, or change train.save-interval (1), "),
        (config(last=0), {"disable_validation": True}, "`train.disable-validation` leaves none; change it, or add"),
        (config(last=0), {AFTER: 50}, "`train.validate-after-updates` leaves none; change it, or add `average"),
    ],
)
def test_what_will_be_missing_is_said_with_what_to_change(settings, args, said):
    text = refusal(settings, parsed(**args))
    assert text.startswith("model.yaml: ")
    assert said in text


def test_epochs_that_the_updates_leave_no_time_for():
    assert "of 3 epochs will have kept 3 (1, 2, 3); ask" in refusal(config(last=4, by="epoch"), parsed(), 13)


def test_the_end_of_a_training():
    args = parsed(update_freq=[2, 1], max_update=0, max_epoch=3)
    assert [updates_in_epoch(5, args)(epoch) for epoch in (1, 2, 3)] == [3, 5, 5]
    assert updates_in_epoch(5, parsed(update_freq=[2], skip_remainder_batch=True))(1) == 2
    assert final("update", args, updates_in_epoch(5, args)) == 13
    assert (final("update", args, None), final("epoch", args, None)) == (None, 3)
    both = parsed(max_update=10, max_epoch=3)
    assert (final("update", both, lambda _: 5), final("epoch", both, lambda _: 5)) == (10, 2)
    assert (final("update", both, lambda _: 2), final("epoch", both, lambda _: 2)) == (6, 3)
