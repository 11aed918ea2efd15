"""Changes to fairseq's checkpoints: allowed types, damaged files, complete files, and when they are saved."""

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
    """A checkpoint cannot be used. The message names the file, the problem and what to do."""


def plain_types() -> list[Any]:
    """Return the types that checkpoints hold beside tensors: options (``argparse.Namespace``), arrays and numbers.

    The types of numpy are listed under their names in numpy 1 and 2. fairseq's meters are listed because old
    checkpoints hold them. Only dtypes of numbers are listed. Never add a dtype that can hold objects: unpickling it
    trusts the file.
    """
    import numpy
    from fairseq.logging import meters

    multiarray = getattr(numpy, "_core", None) or numpy.core
    numbers = [type(numpy.dtype(number)) for number in ("bool", "int32", "int64", "float32", "float64")]
    allowed: list[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype, *numbers]
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        allowed += [(getattr(multiarray.multiarray, name), f"{module}.{name}") for name in ("_reconstruct", "scalar")]
    for module in ("fairseq.logging.meters", "fairseq.meters"):
        names = ("AverageMeter", "TimeMeter", "StopwatchMeter")
        allowed += [(getattr(meters, name), f"{module}.{name}") for name in names]
    return allowed


@contextmanager
def allowing(kinds: list[Any]) -> Iterator[None]:
    """Let ``torch.load(weights_only=True)`` read these types, too, until the context ends."""
    # at the end torch removes all of these from its list, so leave out those that were on it already
    previous = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([kind for kind in kinds if kind not in previous]):
        yield


def read_checkpoint_types() -> None:
    """Let fairseq read its checkpoints with torch 2.6 and later, which by default reads only tensors.

    torch's check of types stays on. While fairseq reads a checkpoint, the types that checkpoints hold are allowed, too.
    """
    from fairseq import checkpoint_utils

    for name in ("load_checkpoint_to_cpu", "load_ema_from_checkpoint"):

        @shim(checkpoint_utils, name)
        def load(original: Original, *args: Any, **kwargs: Any) -> Any:
            with allowing(plain_types()):
                return original(*args, **kwargs)


def read_broadcast_types() -> None:
    """Resume data-parallel training on torch 2.6 and later, where rank 0 sends the checkpoint to the others.

    In that message the configuration is an object of omegaconf. Its types are allowed for the message only, never for a
    file.
    """
    from fairseq.distributed import utils
    from omegaconf import DictConfig, ListConfig, base, nodes

    allowed: list[Any] = [DictConfig, ListConfig, base.ContainerMetadata, base.Metadata, nodes.AnyNode, Any]
    allowed += [collections.defaultdict, dict, list, int, utils._TensorPlaceholder, *plain_types()]

    @shim(utils, "_broadcast_object_slow")
    def broadcast(original: Original, *args: Any, **kwargs: Any) -> Any:
        with allowing(allowed):
            return original(*args, **kwargs)


def refuse_damaged_checkpoints() -> None:
    """Refuse a damaged file with a message that names it and says what to do.

    torch's own error is not shown, since for a file with other types it advises to turn the check off.
    """
    from fairseq import checkpoint_utils

    @shim(checkpoint_utils, "load_checkpoint_to_cpu")
    def load_checked(original: Original, path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            if zipfile.is_zipfile(path):
                check_sums(path)
            return original(path, *args, **kwargs)
        except Exception as error:
            if getattr(error, "filename", None) is not None:  # missing, or no permission: the message is clear already
                raise
            raise CheckpointError(why_unreadable(path, error)) from None


def check_sums(path: str | Path) -> None:
    """Verify the checksums of a file in torch's format, which torch does not do. Torch 1.5 and earlier wrote none.

    Raises:
        zipfile.BadZipFile: the file is damaged. If its table of contents is damaged, zipfile may raise other errors.
    """
    with zipfile.ZipFile(path) as archive:
        # one flipped bit can mark a part as a folder: torch then reads nothing, and returns uninitialised memory
        if archive.testzip() is not None or any(part.external_attr & 0x10 for part in archive.infolist()):
            raise zipfile.BadZipFile("a part of it does not match its checksum")


_REFUSED = re.compile(  # torch's messages about a type that is not allowed
    r"[Uu]nsupported (?:global: )?GLOBAL (\S+)"
    r"|(?:reduce for unrecognized function|allowlisted via `add_safe_globals` but got) (.{1,200})"
)


def why_unreadable(path: str, error: Exception) -> str:
    """Return a message that says why a file cannot be read as a checkpoint, and what to do."""
    if refused := _REFUSED.search(str(error)):
        return (
            f"{path}: refused, because it asks for {refused[1] or refused[2]}, which is not among the types that a "
            "fairseq checkpoint holds; loading it could run code. None of it was run. Use a checkpoint from a "
            "source you trust, written by fairseq-train."
        )
    problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if isinstance(error, pickle.UnpicklingError):
        problem = "not a pickled one"  # torch's message advises to read the file without the check
    return (
        f"{path}: not a readable fairseq checkpoint ({problem}). It is damaged, cut short, a pointer of Git LFS or "
        "something else: copy it again, or go back to an earlier checkpoint of the same folder (to resume: "
        "--restore-file checkpoint_best.pt)."
    )


def write_state(state: Any, path: Path) -> None:
    """Save with torch. The file gets its name when it is complete and on the disk.

    Raises:
        OSError: the file cannot be written; ``path`` is unchanged.
    """
    with whole_file(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # for a full disk torch raises an error that does not say so
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


@contextmanager
def refusing(task: str) -> Iterator[None]:
    """End the process with a message and status 1 if a command cannot do its task, such as "convert a model".

    From then on, characters that the terminal's encoding lacks are printed as escape sequences.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: cannot {task}: {error}")


def save_complete_checkpoints() -> None:
    """Write every checkpoint completely, or leave the previous file as it was.

    fairseq writes the copies of a checkpoint (last, best) in place, so a full disk or a kill leaves an incomplete last
    checkpoint. On a full disk it tries three times, and may append the second attempt to the remains of the first.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    @shim(checkpoint_utils, "torch_persistent_save")
    def save_complete(original: Original, obj: Any, filename: str, async_write: bool = False) -> Any:
        if async_write or not PathManager.supports_rename(filename):
            return original(obj, filename, async_write=async_write)
        write_state(obj, Path(filename))

    @shim(PathManager, "copy")
    def copy_complete(original: Original, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not overwrite or not PathManager.supports_rename(dst_path):
            return original(src_path, dst_path, overwrite=overwrite)
        with open(src_path, "rb") as source, whole_file(Path(dst_path)) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return dst_path


def keep_updates_at_epoch_ends() -> None:
    """Write ``checkpoint_E_U.pt`` after every --save-interval-updates.

    If the update ends an epoch, fairseq does not write this checkpoint, and does not delete older ones of this kind. An
    average of the last ones then misses some, such as the final one, or finds none at all.
    """
    from fairseq import checkpoint_utils

    @shim(checkpoint_utils, "save_checkpoint")
    def save_interval(original: Original, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        interval = cfg.save_interval_updates
        due = epoch_itr.end_of_epoch() and interval > 0 and trainer.get_num_updates() % interval == 0
        if not due or cfg.no_save:
            return original(cfg, trainer, epoch_itr, val_loss)
        # checkpoint_last.pt is written last: if a kill prevents this, fairseq resumes earlier and writes both again
        if not cfg.no_epoch_checkpoints and epoch_itr.epoch % cfg.save_interval == 0:
            without_last = copy.copy(cfg)
            without_last.no_last_checkpoints = True
            original(without_last, trainer, epoch_itr, val_loss)
        within_epoch = types.SimpleNamespace(
            epoch=epoch_itr.epoch, end_of_epoch=lambda: False, state_dict=epoch_itr.state_dict
        )
        return original(cfg, trainer, within_epoch, val_loss)


def remember_patience() -> None:
    """Save the state of ``--patience``, so that a resumed training ends where it would have ended without a pause.

    fairseq keeps the number of validations without an improvement, and the best score, as attributes of a function. A
    new process starts without them, and takes its first validation for the best.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    def counted() -> dict[str, Any]:
        """Return the attributes in fairseq-train, run as a command (``__main__``) or imported; {} elsewhere."""
        modules = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
        functions = (getattr(module, "should_stop_early", None) for module in modules)
        return next((vars(function) for function in functions if function is not None), {})

    @shim(Trainer, "save_checkpoint")
    def with_count(original: Original, self: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        return original(self, filename, {**extra_state, "patience": dict(counted())})

    @shim(checkpoint_utils, "load_checkpoint")
    def counting_on(original: Original, cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        extra_state, epoch_itr = original(cfg, trainer, **kwargs)
        if extra_state is not None and not cfg.reset_optimizer and not cfg.reset_meters:
            counted().update(extra_state.get("patience", {}))
        return extra_state, epoch_itr
