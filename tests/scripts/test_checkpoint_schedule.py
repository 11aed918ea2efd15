"""The checkpoints that a training keeps, as scripts.check computes them.

tests/compat/test_intervals.py compares them with those that fairseq keeps.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from scripts.config import Config
from scripts.fairseq_io.checkpoint_schedule import check_checkpoints

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
    "patience": -1,
    "lr_scheduler": "fixed",
    "lr": [0.1],
    "force_anneal": None,
    "lr_shrink": 0.1,
    "warmup_updates": 0,
}
COSINE = {"lr_scheduler": "cosine", "warmup_updates": 10, "warmup_init_lr": 0.0, "min_lr": 0.0, "t_mult": 1.0}
COSINE |= {"lr_period_updates": 30}
INVERSE_SQRT = {"lr_scheduler": "inverse_sqrt", "warmup_updates": 10, "warmup_init_lr": 0.0}


def config(last: int = 3, by: str = "update", **more: Any) -> Config:
    average = {"by": by, "last": last} if last else {}
    return Config(Path("model.yaml"), "model", "toy", [1], average=average, **more)


def check(settings: Config, flags: dict[str, Any]) -> None:
    check_checkpoints(settings, Namespace(**DEFAULTS | flags))


EVERY, KEEP, AFTER = "save_interval_updates", "keep_interval_updates", "validate_after_updates"


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        (config(), {EVERY: 10, KEEP: 3}),
        (config(), {EVERY: 10, AFTER: 20}),  # the checkpoint of update 20 is kept
        (config(by="epoch"), {}),  # the length of an epoch is not known
        (config(last=0), {}),
        (config(), {EVERY: 5, "patience": 2}),
        (config(), {EVERY: 5, **COSINE}),  # from update 30 on, where the learning rate is a quarter
        (config(), {EVERY: 10, **INVERSE_SQRT}),  # from update 20 on, where the learning rate is 1.4 times the last
        (config(1), {EVERY: 40, **COSINE, "warmup_updates": 40}),  # one checkpoint: nothing is averaged
        (config(), {EVERY: 10, "lr_scheduler": "reduce_lr_on_plateau"}),
        (config(tune={"last": ["best", 3]}), {EVERY: 10}),
    ],
)
def test_settings_with_enough_checkpoints_pass(settings, flags):
    check(settings, flags)


@pytest.mark.parametrize(
    ("settings", "flags", "message"),
    [
        (config(), {EVERY: 16}, "of 40 updates will have kept 2 (16, 32); ask for fewer, or change train.save-inter"),
        (config(), {}, "of 40 updates will have kept none; ask for fewer, or change train.save-interval-updates (0), "),
        (config(), {"max_update": 0, "max_epoch": 3}, "but a training will have kept none; ask for fewer"),
        (config(), {EVERY: 5, KEEP: 2}, "kept 2 (35, 40); ask for fewer"),
        (config(tune={"last": [1, 5]}), {EVERY: 20, KEEP: 1}, "`tune.last` asks for 5 checkpoints by update, but a"),
        (config(), {EVERY: 10, AFTER: 25}, "kept 2 (30, 40); ask for fewer"),
        (config(by="epoch"), {"no_epoch_checkpoints": True}, "train.no-epoch-checkpoints (True), "),
        (config(by="epoch"), {"keep_last_epochs": 2}, "kept 2; ask for fewer, or change train.save-interval (1), "),
        (config(4, "epoch"), {"max_update": 0, "max_epoch": 3}, "of 3 epochs will have kept 3 (1, 2, 3); ask"),
        (
            config(4),
            {EVERY: 5, "patience": 2},
            "`train.patience` 2 may end the training after 3 validations; ask for few",
        ),
        (
            config(),
            {EVERY: 10, **COSINE},
            "3 checkpoints, the first of them of update 20, which is too early: the learn",
        ),
        (config(), {EVERY: 10, **COSINE}, "rate there is 0.079, of at most 0.1 and 0.00027 in the end. Ask for fewer"),
        (
            config(),
            {EVERY: 10, **INVERSE_SQRT, "warmup_updates": 20},
            "the learning rate rises up to update 21. Ask for",
        ),
        (config(tune={"last": ["best", 3]}), {EVERY: 10, "disable_validation": True}, "`tune.last` has the best check"),
        (config(last=0), {"disable_validation": True}, "`train.disable-validation` leaves none; change it, or add"),
        (config(last=0), {AFTER: 50}, "`train.validate-after-updates` leaves none; change it, or add `average"),
    ],
)
def test_a_missing_checkpoint_is_reported_with_the_settings_to_change(settings, flags, message):
    with pytest.raises(UserError) as refused:
        check(settings, flags)
    assert str(refused.value).startswith("model.yaml: ")
    assert message in str(refused.value)
