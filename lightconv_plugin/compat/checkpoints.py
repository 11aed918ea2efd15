"""Checkpoints as they are read: which types may be in them, that they are whole, and errors that say what to do."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import zipfile
from typing import Any

import torch

from lightconv_plugin.compat.shim import Original, shim


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message says which file, what was found and what to do."""


# Spelled as they stand in checkpoint files. numpy 2 moved `numpy.core` to `numpy._core`; fairseq moved its meters.
# Number types only: a dtype that can hold objects must never be added, its unpickling trusts the file.
_PLAIN_TYPES = ("argparse.Namespace", "numpy.ndarray", "numpy.dtype")
_NUMPY_NUMBERS = ("bool", "int32", "int64", "float32", "float64")
_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
_METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter")
_METER_MODULES = ("fairseq.meters", "fairseq.logging.meters")

# What rank 0 sends to the other processes when data-parallel training resumes.
_BROADCAST_TYPES = (
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.nodes.AnyNode",
    "typing.Any",
    "collections.defaultdict",
    "builtins.dict",
    "builtins.list",
    "builtins.int",
    "fairseq.distributed.utils._TensorPlaceholder",
)


def _named(path: str) -> tuple[Any, str]:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name), path


def allow_checkpoint_types() -> None:
    """Needed from torch 2.6 on: let `torch.load(weights_only=True)` read fairseq's checkpoints.

    The check stays on; this only adds the types that such checkpoints hold: the options (`argparse.Namespace`), numpy
    arrays and numbers (`--eval-bleu`, old scores) in the spellings of numpy 1 and 2, and the meters of old checkpoints.
    """
    numpy = importlib.import_module("numpy")
    multiarray = importlib.import_module("numpy._core.multiarray" if hasattr(numpy, "_core") else _NUMPY_MODULES[1])
    allowed: list[Any] = [_named(path) for path in _PLAIN_TYPES]
    allowed += [type(numpy.dtype(number)) for number in _NUMPY_NUMBERS]
    for module in _NUMPY_MODULES:
        allowed += [(getattr(multiarray, name), f"{module}.{name}") for name in ("_reconstruct", "scalar")]
    allowed += [_named(f"{module}.{name}") for module in _METER_MODULES for name in _METERS]
    torch.serialization.add_safe_globals(allowed)


def allow_broadcast_types() -> None:
    """Needed from torch 2.6 on: data-parallel resume, where rank 0 sends the checkpoint to the others.

    By then its configuration is omegaconf's. The extra types are allowed for that message only, never for a file.
    """
    from fairseq.distributed import utils as distributed_utils

    @shim(distributed_utils, "_broadcast_object_slow")
    def broadcast_types(original: Original, *args: Any, **kwargs: Any) -> Any:
        allowed: list[Any] = [_named(path) for path in _BROADCAST_TYPES]
        with torch.serialization.safe_globals(allowed):
            return original(*args, **kwargs)


def explain_checkpoint_errors() -> None:
    """All versions: say which file, what was found and what to do, and refuse a file that is damaged.

    torch's own error is not shown beside: for a refused file it advises to switch the check off.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    @shim(checkpoint_utils, "load_checkpoint_to_cpu")
    def unreadable(original: Original, path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            _check_archive(path)
            return original(path, *args, **kwargs)
        except Exception as error:
            if getattr(error, "filename", None) is not None:  # missing, or no permission: a sentence already
                raise
            raise CheckpointError(_why_unreadable(path, error)) from None

    @shim(checkpoint_utils, "load_model_ensemble_and_task")
    def other_model(original: Original, filenames: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(filenames, *args, **kwargs)
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            advice = "Use the dictionaries and the version of the model's code that it was trained with."
            raise CheckpointError(_why_not_this_model(", ".join(filenames), error, advice)) from error

    @shim(Trainer, "load_checkpoint")
    def other_training(original: Original, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, filename, *args, **kwargs)
        except Exception as error:
            cause = error.__context__
            if cause is None or "loading state_dict" not in str(cause):
                raise
            advice = "Give the --arch, sizes and dictionaries that it was trained with, or another "
            if os.path.dirname(os.path.abspath(filename)) == os.path.abspath(self.cfg.checkpoint.save_dir):
                advice += "--save-dir: this one holds another training."
            else:
                advice += (
                    "--restore-file. Data for this model are binarised with its own dictionaries "
                    "(fairseq-preprocess --srcdict --tgtdict)."
                )
            raise CheckpointError(_why_not_this_model(filename, cause, advice)) from error


def _check_archive(path: str) -> None:
    """Compare the parts of a file in torch's format with their checksums; torch itself does not.

    The format of before torch 1.6 has no checksums. ``scripts/fairseq_io/checkpoints.py`` has a twin of these lines:
    the plugin is installed without the scripts, and those do without fairseq.

    Raises:
        BadZipFile: they do not agree; or another of zipfile's many errors.
    """
    if not os.path.isfile(path):  # missing, or in a storage that fairseq fetches it from
        return
    with open(path, "rb") as file:
        if file.read(4) != b"PK\3\4":
            return
        try:
            with zipfile.ZipFile(file) as archive:
                bad = archive.testzip()
                # one flipped bit: torch then reads nothing for the part, and gives what was in memory
                folder = next((part.filename for part in archive.infolist() if part.external_attr & 0x10), None)
        except zipfile.BadZipFile as error:
            raise zipfile.BadZipFile(f"its table of contents, at the end, is missing or damaged: {error}") from None
    if bad is not None:
        raise zipfile.BadZipFile(f"its part {bad} does not match its checksum")
    if folder is not None:
        raise zipfile.BadZipFile(f"its part {folder} is marked as a folder")


def _why_unreadable(path: str, error: Exception) -> str:
    size = os.path.getsize(path) if os.path.exists(path) else 0
    refused = re.search(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)", str(error))
    if refused:
        return (
            f"{path}: refused, because it asks for {refused[1]}, which is not among the types that a fairseq "
            "checkpoint holds; loading it could run code. Nothing of it was run. Use a checkpoint from a source you "
            "trust, written by fairseq-train."
        )
    called = re.search(
        r"(?:reduce for unrecognized function|allowlisted via `add_safe_globals` but got) (.+)", str(error)
    )
    if called:
        return (
            f"{path}: refused, because it asks to call something that is not among the types that a fairseq "
            f"checkpoint holds ({called[1][:200]}). Use a checkpoint from a source you trust."
        )
    if isinstance(error, zipfile.BadZipFile):
        found = str(error)
    elif isinstance(error, pickle.UnpicklingError | LookupError | EOFError):
        found = "it does not hold what a checkpoint holds"  # torch's text is advice to read it without the check
    else:
        found = f"{type(error).__name__}: {_first_line(error)}"
    return (
        f"{path}: not a readable fairseq checkpoint ({size:,} bytes; {found}). The file is damaged, truncated or "
        "something else: copy it again, or go back to an earlier checkpoint of the same folder (to resume: "
        "--restore-file checkpoint_best.pt)."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"


def _why_not_this_model(what: str, error: BaseException, advice: str) -> str:
    text = str(error)
    found = []
    for pattern, label in (
        (r"Missing key\(s\) in state_dict: (.*)", "not in the file"),
        (r"Unexpected key\(s\) in state_dict: (.*)", "only in the file"),
    ):
        match = re.search(pattern, text)
        if match:
            names = re.findall(r'"([^"]+)"', match[1])
            found.append(f"{len(names)} {label} (first: {names[0]})")
    shapes = re.findall(
        r"size mismatch for (\S+): .* torch\.Size\((.*?)\) from checkpoint, .* torch\.Size\((.*?)\)", text
    )
    if shapes:
        name, theirs, ours = shapes[0]
        found.append(f"{len(shapes)} of another shape (first: {name}, {theirs} in the file, {ours} here)")
    differences = "; ".join(found) or _first_line(error)
    return f"{what}: its parameters are not those of this model: {differences}. {advice}"
