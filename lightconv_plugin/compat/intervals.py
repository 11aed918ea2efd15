"""Checkpoints of every --save-interval-updates, those at an epoch's end included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightconv_plugin.compat.wrap import wrap


class _Changed:
    """An object as it is, but for some attributes."""

    def __init__(self, whole: Any, **changed: Any) -> None:
        self._whole = whole
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def keep_updates_at_epoch_ends() -> None:
    """All versions: `checkpoint_E_U.pt` is written after every --save-interval-updates.

    fairseq leaves it out where the update ends an epoch, and prunes none of them there: the mean of the last ones then
    misses some, the final one among them, or finds none at all.
    """
    from fairseq import checkpoint_utils

    def every_interval(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
            interval = cfg.save_interval_updates
            due = epoch_itr.end_of_epoch() and interval > 0 and trainer.get_num_updates() % interval == 0
            if not due or cfg.no_save:
                return original(cfg, trainer, epoch_itr, val_loss)
            # fairseq goes on from checkpoint_last.pt: a kill before it is written makes both of the others again
            if not cfg.no_epoch_checkpoints and epoch_itr.epoch % cfg.save_interval == 0:
                original(_Changed(cfg, no_last_checkpoints=True), trainer, epoch_itr, val_loss)
            return original(cfg, trainer, _Changed(epoch_itr, end_of_epoch=lambda: False), val_loss)

        return wrapper

    wrap(checkpoint_utils, "save_checkpoint", every_interval)
