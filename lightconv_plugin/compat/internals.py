"""Parts of fairseq that have no public name: of its trainer and models, one function each."""

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
"""The numbers of ``ops.fused.update.CONTROL`` that are attributes of fairseq's DynamicLossScaler, with their names."""


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
    """Return the first batch of the epoch, which fairseq keeps for processes that have none; or a word in its place."""
    return trainer._dummy_batch


def use_model_itself(trainer: Any) -> None:
    """Have the trainer call its model and criterion, not the wrappers that average gradients."""
    trainer._wrapped_model, trainer._wrapped_criterion = trainer.get_model(), trainer.get_criterion()


def wrap_model_again(trainer: Any) -> None:
    """Undo ``use_model_itself``: the trainer makes wrappers when it needs them."""
    if trainer._wrapped_model is trainer.get_model():
        trainer._wrapped_model = trainer._wrapped_criterion = None


def is_at_end(epoch_iterator: Any) -> bool:
    """Return True if the last batch of an epoch was taken; False before the first epoch."""
    return epoch_iterator is not None and epoch_iterator._cur_epoch_itr is not None and epoch_iterator.end_of_epoch()


def is_prepared_for_inference(model: Any) -> bool:
    """Return True after ``prepare_for_inference_``, which fairseq's commands of generation call."""
    return bool(getattr(model, "_is_generation_fast", False))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Have models built on torch's meta device, which has no memory.

    fairseq's ConvTBC calls ``torch.Tensor``, which takes no notice of the default device: its module sees
    ``torch.empty`` in that place until the context ends.
    """
    from fairseq.modules import conv_tbc

    with patch.object(conv_tbc, "torch", ModuleView(torch, Tensor=torch.empty)), torch.device("meta"):
        yield
