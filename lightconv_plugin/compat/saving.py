"""Checkpoints as they are written: when they are due, whole or not at all; full disks."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lightconv_plugin.compat.checkpoints import CheckpointError
from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.ops.files import whole_file

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that removing files mends


def write_state(state: Any, path: Path) -> None:
    """Save with torch; the file is under its name when it is whole and on the disk.

    Raises:
        OSError: it cannot be written; ``path`` is as it was.
    """
    try:
        with whole_file(path) as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch hides a full disk behind a complaint of its own
            cause = error.__context__
            raise OSError(cause.errno, cause.strerror, str(path)) from None
        raise


@contextmanager
def refusing(what: str, refusal: type[Exception], out: Path) -> Iterator[None]:
    """End the process with a sentence and status 1 where a command that is to write ``out`` cannot do ``what``."""
    try:
        yield
    except refusal as error:
        sys.exit(f"error: cannot {what}: {error}. Nothing was written")
    except CheckpointError as error:
        sys.exit(f"error: {error} Nothing was written.")
    except OSError as error:
        advice = ". Remove what is not needed from the disk of OUT, or give an OUT on another one"
        said = f"{error.filename or out}: {error.strerror}; nothing was written"
        sys.exit(f"error: {said}{advice if error.errno in FULL else ''}")


def save_checkpoints_whole() -> None:
    """All versions: every checkpoint is there whole, or as it was before, and nothing lies beside it.

    fairseq writes `NAME.tmp` and renames it, then writes the copies of it (last, best) in place: a full disk or a kill
    leaves the one, or a last checkpoint that is cut short. On a full disk it tries three times, and may append the
    second to the rest of the first.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    @shim(checkpoint_utils, "torch_persistent_save")
    def saved_whole(original: Original, obj: Any, filename: str, async_write: bool = False) -> Any:
        if async_write or not PathManager.supports_rename(filename):
            return original(obj, filename, async_write=async_write)
        try:
            write_state(obj, Path(filename))
        except OSError as error:
            raise _explained(error, Path(filename)) from None

    @shim(PathManager, "copy")
    def copied_whole(original: Original, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not overwrite or not PathManager.supports_rename(dst_path):
            return original(src_path, dst_path, overwrite=overwrite)
        with open(src_path, "rb") as source:
            try:
                with whole_file(Path(dst_path)) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            except OSError as error:
                raise _explained(error, Path(dst_path)) from None
        return dst_path


class _Overlay:
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

    @shim(checkpoint_utils, "save_checkpoint")
    def every_interval(original: Original, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        interval = cfg.save_interval_updates
        due = epoch_itr.end_of_epoch() and interval > 0 and trainer.get_num_updates() % interval == 0
        if not due or cfg.no_save:
            return original(cfg, trainer, epoch_itr, val_loss)
        # fairseq goes on from checkpoint_last.pt: a kill before it is written makes both of the others again
        if not cfg.no_epoch_checkpoints and epoch_itr.epoch % cfg.save_interval == 0:
            original(_Overlay(cfg, no_last_checkpoints=True), trainer, epoch_itr, val_loss)
        return original(cfg, trainer, _Overlay(epoch_itr, end_of_epoch=lambda: False), val_loss)


def _explained(error: OSError, path: Path) -> Exception:
    """A full disk in a sentence that says what can be removed; any other error as it is, with its file's name."""
    if error.errno not in FULL:
        return error
    # the newest stays: it may be all that training can go on from
    others = [each for each in path.parent.glob("checkpoint*[0-9].pt") if each != path]
    older = sorted(others, key=lambda each: each.stat().st_mtime_ns)[:-1]
    megabytes = sum(each.stat().st_size for each in older) / 1e6
    names = ", ".join(each.name for each in older[:3]) + (", ..." if len(older) > 3 else "")
    removable = (
        f"What is not to be averaged of {path.parent} can be removed: {names} (together {megabytes:,.1f} MB)"
        if older
        else f"There is no older checkpoint in {path.parent} to remove: remove something else from its disk"
    )
    return CheckpointError(
        f"{path}: cannot be written: {error.strerror}; nothing of it was left behind. {removable}. Then the same "
        "command goes on from checkpoint_last.pt, if that is there."
    )
