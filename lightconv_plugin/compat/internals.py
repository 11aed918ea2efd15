"""Access to parts of fairseq's trainer and models that have no public name, one function for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from lightconv_plugin.compat.shim import ModuleView

LOSS_SCALER = {
    "loss_scale": "loss_scale",
    "iteration": "_iter",
    "last_overflow": "_last_overflow_iter",
    "last_rescale": "_last_rescale_iter",
    "overflows": "_overflows_since_rescale",
}
"""Attributes of fairseq's DynamicLossScaler, by the names of their values in ``ops.fused.update.CONTROL``."""


def set_seed(trainer: Any) -> None:
    """Seed all random numbers as fairseq does before an update: by ``--seed`` and the number of updates."""
    trainer._set_seed()


def prepare_sample(trainer: Any, sample: Any) -> Any:
    """Return a batch on the trainer's device and in its type."""
    batch, _ = trainer._prepare_sample(sample)
    return batch


def log_update(trainer: Any, logged: dict[str, Any], sample_size: float, norm: Tensor) -> dict[str, Any]:
    """Add an update's numbers to fairseq's log, and return what ``train_step`` returns."""
    output: dict[str, Any] = trainer._reduce_and_log_stats([logged], sample_size, norm)
    return output


def first_batch(trainer: Any) -> Any:
    """Return the epoch's first batch, which fairseq keeps for processes without one; None or "DUMMY" if it has none."""
    return trainer._dummy_batch


def use_model_itself(trainer: Any) -> None:
    """Let the trainer call its model and criterion themselves, without the wrappers that average gradients."""
    trainer._wrapped_model, trainer._wrapped_criterion = trainer.get_model(), trainer.get_criterion()


def wrap_model_again(trainer: Any) -> None:
    """Undo ``use_model_itself``. The trainer makes new wrappers when it needs them."""
    if trainer._wrapped_model is trainer.get_model():
        trainer._wrapped_model = trainer._wrapped_criterion = None


def is_at_end(epoch_iterator: Any) -> bool:
    """Return True if the last batch of an epoch was taken; False before the first epoch."""
    return epoch_iterator is not None and epoch_iterator._cur_epoch_itr is not None and epoch_iterator.end_of_epoch()


def is_prepared_for_inference(model: Any) -> bool:
    """Return True after ``prepare_for_inference_``, which fairseq's commands for generation call."""
    return bool(getattr(model, "_is_generation_fast", False))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Build models on torch's meta device, which allocates no memory.

    fairseq's ConvTBC calls ``torch.Tensor``, which ignores the default device. Until the context ends, its module calls
    ``torch.empty`` instead.
    """
    from fairseq.modules import conv_tbc

    with patch.object(conv_tbc, "torch", ModuleView(torch, Tensor=torch.empty)), torch.device("meta"):
        yield
