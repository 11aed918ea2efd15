"""Shims of checkpoints: the types that they may hold, complete files, and the updates after which they are saved."""

from __future__ import annotations

import argparse
import collections
import copy
import io
import pickle
import re
import shutil
import sys
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.ops.files import whole_file


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message says which file, what was found and what to do."""


def plain_types() -> list[Any]:
    """Types that checkpoints hold beside tensors: options (`argparse.Namespace`), numpy's arrays and numbers of scores.

    In the spellings of numpy 1 and 2. Number types only: a dtype that can hold objects must never be added, its
    unpickling trusts the file.
    """
    import numpy

    multiarray = getattr(numpy, "_core", None) or numpy.core
    numbers = [type(numpy.dtype(number)) for number in ("bool", "int32", "int64", "float32", "float64")]
    allowed: list[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype, *numbers]
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        allowed += [(getattr(multiarray.multiarray, name), f"{module}.{name}") for name in ("_reconstruct", "scalar")]
    return allowed


def allow_checkpoint_types() -> None:
    """Needed from torch 2.6 on: let `torch.load(weights_only=True)` read fairseq's checkpoints.

    The check stays on; this only adds the types that such checkpoints hold, with the meters of old ones.
    """
    from fairseq.logging import meters

    allowed = plain_types()
    for module in ("fairseq.logging.meters", "fairseq.meters"):
        names = ("AverageMeter", "TimeMeter", "StopwatchMeter")
        allowed += [(getattr(meters, name), f"{module}.{name}") for name in names]
    torch.serialization.add_safe_globals(allowed)


def allow_broadcast_types() -> None:
    """Needed from torch 2.6 on: data-parallel resume, where rank 0 sends the checkpoint to the others.

    By then its configuration is omegaconf's. The extra types are allowed for that message only, never for a file.
    """
    from fairseq.distributed import utils
    from omegaconf import DictConfig, ListConfig, base, nodes

    allowed: list[Any] = [DictConfig, ListConfig, base.ContainerMetadata, base.Metadata, nodes.AnyNode, Any]
    allowed += [collections.defaultdict, dict, list, int, utils._TensorPlaceholder]

    @shim(utils, "_broadcast_object_slow")
    def broadcast_types(original: Original, *args: Any, **kwargs: Any) -> Any:
        with torch.serialization.safe_globals(allowed):
            return original(*args, **kwargs)


def refuse_damaged_checkpoints() -> None:
    """All versions: refuse a file that is damaged, and say which file, and what to do.

    torch's own error is not shown beside: for a refused file it advises to switch the check off.
    """
    from fairseq import checkpoint_utils

    @shim(checkpoint_utils, "load_checkpoint_to_cpu")
    def unreadable(original: Original, path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            if zipfile.is_zipfile(path):
                check_sums(path)
            return original(path, *args, **kwargs)
        except Exception as error:
            if getattr(error, "filename", None) is not None:  # missing, or no permission: a sentence already
                raise
            raise CheckpointError(why_unreadable(path, error)) from None


def check_sums(path: str | Path) -> None:
    """Compare the checksums of a file in torch's format, which torch does not. The format before torch 1.6 has none.

    Raises:
        zipfile.BadZipFile: the file is damaged; of a damaged table of contents zipfile has other errors, too.
    """
    with zipfile.ZipFile(path) as archive:
        # one flipped bit makes a part a folder: torch then reads nothing for it, and gives what was in memory
        if archive.testzip() is not None or any(part.external_attr & 0x10 for part in archive.infolist()):
            raise zipfile.BadZipFile("a part of it does not match its checksum")


_REFUSED = re.compile(  # in torch's words
    r"[Uu]nsupported (?:global: )?GLOBAL (\S+)"
    r"|(?:reduce for unrecognized function|allowlisted via `add_safe_globals` but got) (.{1,200})"
)


def why_unreadable(path: str, error: Exception) -> str:
    """Say what a file is in place of a checkpoint, and what to do."""
    if refused := _REFUSED.search(str(error)):
        return (
            f"{path}: refused, because it asks for {refused[1] or refused[2]}, which is not among the types that a "
            "fairseq checkpoint holds; loading it could run code. Nothing of it was run. Use a checkpoint from a "
            "source you trust, written by fairseq-train."
        )
    found = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if isinstance(error, pickle.UnpicklingError):
        found = "no pickle of one"  # torch's text is advice to read it without the check
    return (
        f"{path}: not a readable fairseq checkpoint ({found}). It is damaged, cut short, a pointer of Git LFS or "
        "something else: copy it again, or go back to an earlier checkpoint of the same folder (to resume: "
        "--restore-file checkpoint_best.pt)."
    )


def write_state(state: Any, path: Path) -> None:
    """Save with torch; the file is under its name when it is whole and on the disk.

    Raises:
        OSError: it cannot be written; ``path`` is as it was.
    """
    with whole_file(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch hides a full disk behind a complaint of its own
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """End the process with a sentence and status 1 where a command cannot do ``what``.

    From then on, a letter of a path that the terminal's encoding lacks is printed as its number.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: cannot {what}: {error}")


def save_checkpoints_whole() -> None:
    """All versions: every checkpoint is there whole, or as it was before.

    fairseq writes the copies of a checkpoint (last, best) in place: a full disk or a kill leaves a last checkpoint that
    is cut short. On a full disk it tries three times, and may append the second to the rest of the first.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    @shim(checkpoint_utils, "torch_persistent_save")
    def saved_whole(original: Original, obj: Any, filename: str, async_write: bool = False) -> Any:
        if async_write or not PathManager.supports_rename(filename):
            return original(obj, filename, async_write=async_write)
        write_state(obj, Path(filename))

    @shim(PathManager, "copy")
    def copied_whole(original: Original, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not overwrite or not PathManager.supports_rename(dst_path):
            return original(src_path, dst_path, overwrite=overwrite)
        with open(src_path, "rb") as source, whole_file(Path(dst_path)) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return dst_path


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
            without_last = copy.copy(cfg)
            without_last.no_last_checkpoints = True
            original(without_last, trainer, epoch_itr, val_loss)
        within = types.SimpleNamespace(
            epoch=epoch_itr.epoch, end_of_epoch=lambda: False, state_dict=epoch_itr.state_dict
        )
        return original(cfg, trainer, within, val_loss)


def remember_patience() -> None:
    """All versions: a training that is resumed ends by `--patience` where it would have ended without a pause.

    fairseq counts validations without a gain in an attribute of a function, beside the best score so far. A new process
    forgets both: it takes its first validation for the best.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    def counted() -> dict[str, Any]:
        """Return what fairseq-train keeps, as a command (``__main__``) or imported; nothing in another program."""
        modules = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
        functions = (getattr(module, "should_stop_early", None) for module in modules)
        return next((vars(function) for function in functions if function is not None), {})

    @shim(Trainer, "save_checkpoint")
    def with_count(original: Original, self: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        return original(self, filename, {**extra_state, "patience": dict(counted())})

    @shim(checkpoint_utils, "load_checkpoint")
    def counting_on(original: Original, cfg: Any, trainer: Any, **others: Any) -> Any:
        extra_state, epoch_itr = original(cfg, trainer, **others)
        if extra_state is not None and not cfg.reset_optimizer and not cfg.reset_meters:
            counted().update(extra_state.get("patience", {}))
        return extra_state, epoch_itr
