"""What fairseq (ve-fairseq 0.12.3) needs on today's torch, numpy and Python, and nothing else.

`apply()` runs once, when `--user-dir` loads the plugin. Every shim below says which version of what needs it and does
nothing where it is not needed. A fairseq function is only ever wrapped: same signature, the original is called.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import os
import re
import sys
import types
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message says which file, what was found and what to do."""


class SetupError(RuntimeError):
    """A combination of options and machine that cannot train; the message says what to type instead."""


def apply() -> None:
    """Apply every shim; calling it again changes nothing."""
    allow_checkpoint_types()
    allow_broadcast_types()
    explain_checkpoint_errors()
    restore_numpy_compat()
    train_in_bfloat16_without_xla()
    train_data_parallel_on_cpu()
    refuse_what_cannot_train()
    help_with_model_options()


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by `make(original)`, unless this shim is already there."""
    original = getattr(owner, name)
    seen, shims = original, set()
    while seen is not None:
        shims.add(getattr(seen, "_compat_shim", None))
        seen = getattr(seen, "__wrapped__", None)
    if make.__qualname__ in shims:
        return
    wrapper = functools.wraps(original)(make(original))
    wrapper._compat_shim = make.__qualname__  # type: ignore[attr-defined]
    setattr(owner, name, wrapper)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------------------------------

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


def _checks_types() -> bool:
    """torch 2.6 made `torch.load` refuse every type that is not on a list."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 6)


def allow_checkpoint_types(fairseq_types: bool = True) -> None:
    """Needed from torch 2.6 on: let `torch.load(weights_only=True)` read fairseq's checkpoints.

    The check stays on; this only adds the types that such checkpoints hold: the options (`argparse.Namespace`), numpy
    arrays and numbers (`--eval-bleu`, old scores) in the spellings of numpy 1 and 2, and the meters of old checkpoints.
    `fairseq_types=False` leaves the meters out and does not import fairseq, which takes seconds.
    """
    if not _checks_types():
        return
    numpy = importlib.import_module("numpy")
    multiarray = importlib.import_module("numpy._core.multiarray" if hasattr(numpy, "_core") else _NUMPY_MODULES[1])
    allowed: list[Any] = [_named(path) for path in _PLAIN_TYPES]
    allowed += [type(numpy.dtype(number)) for number in _NUMPY_NUMBERS]
    for module in _NUMPY_MODULES:
        allowed += [(getattr(multiarray, name), f"{module}.{name}") for name in ("_reconstruct", "scalar")]
    if fairseq_types:
        allowed += [_named(f"{module}.{name}") for module in _METER_MODULES for name in _METERS]
    torch.serialization.add_safe_globals(allowed)


def allow_broadcast_types() -> None:
    """Needed from torch 2.6 on: data-parallel resume, where rank 0 sends the checkpoint to the others.

    By then its configuration is omegaconf's. The extra types are allowed for that message only, never for a file.
    """
    if not _checks_types():
        return
    from fairseq.distributed import utils as distributed_utils

    def broadcast_types(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            allowed: list[Any] = [_named(path) for path in _BROADCAST_TYPES]
            with torch.serialization.safe_globals(allowed):
                return original(*args, **kwargs)

        return wrapper

    _wrap(distributed_utils, "_broadcast_object_slow", broadcast_types)


def explain_checkpoint_errors() -> None:
    """All versions: say which file, what was found and what to do; the original error stays as the cause."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    def unreadable(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(path: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(path, *args, **kwargs)
            except Exception as error:
                if getattr(error, "filename", None) is not None:  # missing, or no permission: a sentence already
                    raise
                raise CheckpointError(_why_unreadable(path, error)) from error

        return wrapper

    def other_model(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(filenames: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(filenames, *args, **kwargs)
            except RuntimeError as error:
                if "loading state_dict" not in str(error):
                    raise
                advice = "Use the dictionaries and the version of the model's code that it was trained with."
                raise CheckpointError(_why_not_this_model(", ".join(filenames), error, advice)) from error

        return wrapper

    def other_training(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, filename, *args, **kwargs)
            except Exception as error:
                cause = error.__context__
                if cause is None or "loading state_dict" not in str(cause):
                    raise
                advice = "Give the --arch, sizes and dictionaries it was trained with, or another --save-dir."
                raise CheckpointError(_why_not_this_model(filename, cause, advice)) from error

        return wrapper

    _wrap(checkpoint_utils, "load_checkpoint_to_cpu", unreadable)
    _wrap(checkpoint_utils, "load_model_ensemble_and_task", other_model)
    _wrap(Trainer, "load_checkpoint", other_training)


def _why_unreadable(path: str, error: Exception) -> str:
    size = os.path.getsize(path) if os.path.exists(path) else 0
    refused = re.search(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)", str(error))
    if refused:
        return (
            f"{path}: refused, because it asks for {refused[1]}, which is not among the types that a fairseq "
            "checkpoint holds; loading it could run code. Nothing of it was run. Use a checkpoint from a source you "
            "trust, written by fairseq-train."
        )
    if "reduce for unrecognized function" in str(error) or "create new object" in str(error):
        return (
            f"{path}: refused, because it asks to call something that is not among the types that a fairseq "
            f"checkpoint holds ({str(error).splitlines()[-1].strip()[:200]}). Use a checkpoint from a source you trust."
        )
    return (
        f"{path}: not a readable fairseq checkpoint ({size:,} bytes; {type(error).__name__}: "
        f"{_first_line(error)}). The file is probably truncated, or something else: copy it again, or go back to an "
        "earlier checkpoint of the same folder (to resume: --restore-file checkpoint_best.pt)."
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


# ---------------------------------------------------------------------------------------------------------------------
# numpy
# ---------------------------------------------------------------------------------------------------------------------


def restore_numpy_compat() -> None:
    """Needed from numpy 2.0 on, which removed `np.compat`.

    fairseq uses `np.compat.long` in TokenBlockDataset (`--sample-break-mode eos`) and in LanguagePairDataset
    (`--num-batch-buckets`). On Python 3 it was `int`.
    """
    import numpy as np

    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------------------
# bfloat16
# ---------------------------------------------------------------------------------------------------------------------


def train_in_bfloat16_without_xla() -> None:
    """All torch versions, where torch_xla is not installed: `--bf16` on a GPU or CPU.

    fairseq's command line takes `--bf16` to mean a TPU, then fails for want of torch_xla.
    """
    from fairseq import utils
    from fairseq.distributed import utils as distributed_utils

    if getattr(utils, "xm", None) is not None:
        return

    def no_tpu(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(cfg: Any, main: Any, **kwargs: Any) -> Any:
            if cfg.common.bf16 and cfg.common.tpu:
                from omegaconf import open_dict

                with open_dict(cfg):
                    for part in cfg.values():
                        if isinstance(part, MutableMapping) and part.get("tpu"):
                            part["tpu"] = False
            return original(cfg, main, **kwargs)

        return wrapper

    _wrap(distributed_utils, "call_main", no_tpu)


# ---------------------------------------------------------------------------------------------------------------------
# Data-parallel training on CPUs
# ---------------------------------------------------------------------------------------------------------------------


def _on_cpu(cfg: Any) -> bool:
    return not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available())


def _launched_processes() -> int:
    """How many processes torchrun started; 1 where it did not start this one."""
    if not all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        return 1
    return int(os.environ["WORLD_SIZE"])


def train_data_parallel_on_cpu() -> None:
    """All torch versions, on CPUs only: `torchrun --nproc_per_node N -m fairseq_cli.train ... --cpu` trains one model.

    fairseq counts GPUs: without one it divides by zero, starts N separate trainings or trains nothing, talks NCCL, and
    hands a GPU number to DistributedDataParallel. Runs on GPUs are left as they are, and so is SLURM's own launching.
    """
    from fairseq.distributed import utils as distributed_utils
    from fairseq.models import distributed_fairseq_model

    def join_torchrun(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(cfg: Any, main: Any, **kwargs: Any) -> Any:
            if _on_cpu(cfg):
                _use_launched_processes(cfg.distributed_training)
            return original(cfg, main, **kwargs)

        return wrapper

    def no_device_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: Any, *args: Any, **kwargs: Any) -> Any:
            if all(parameter.device.type == "cpu" for parameter in module.parameters()):
                kwargs.update(device_ids=None, output_device=None)
            return original(module, *args, **kwargs)

        return wrapper

    _wrap(distributed_utils, "call_main", join_torchrun)
    _wrap(distributed_fairseq_model, "DistributedDataParallel", no_device_on_cpu)


def _use_launched_processes(cfg: Any) -> None:
    processes = _launched_processes()
    if cfg.distributed_backend == "nccl":
        cfg.distributed_backend = "gloo"
    if cfg.distributed_init_method is None and processes > 1:
        cfg.distributed_init_method = "env://"
        cfg.distributed_world_size = processes
        cfg.distributed_rank = int(os.environ["RANK"])
        cfg.device_id = 0
        cfg.distributed_no_spawn = True
    asked = cfg.distributed_init_method is not None or cfg.distributed_world_size > 1
    if asked and not cfg.distributed_no_spawn and "SLURM_JOB_ID" not in os.environ:
        count = cfg.distributed_world_size
        raise SetupError(
            f"--distributed-world-size is {count} (its default is the number of GPUs), but on CPUs fairseq-train does "
            f"not start processes itself. Start them with: torchrun --nproc_per_node {max(count, 2)} -m "
            "fairseq_cli.train ... --cpu; or give --distributed-world-size 1, without --distributed-init-method."
        )


def refuse_what_cannot_train() -> None:
    """All versions, on CPUs: two mistakes get a sentence instead of a deep error or a silent second training."""
    from fairseq.trainer import Trainer

    def check(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(cfg, "common") and _on_cpu(cfg):
                if cfg.common.fp16:
                    raise SetupError("--fp16 needs a GPU. On a CPU train with --bf16, or without either.")
                processes = _launched_processes()
                if processes > 1 and cfg.distributed_training.distributed_world_size == 1:
                    part = "distributed_training.distributed_"
                    raise SetupError(
                        f"torchrun started {processes} processes, but each was about to train a model of its own. Give "
                        f"{part}init_method=env:// {part}no_spawn=true {part}world_size={processes} "
                        f"{part}backend=gloo '{part}rank=${{oc.env:RANK}}'."
                    )
            return original(self, cfg, *args, **kwargs)

        return wrapper

    _wrap(Trainer, "__init__", check)


# ---------------------------------------------------------------------------------------------------------------------
# Help
# ---------------------------------------------------------------------------------------------------------------------


def help_with_model_options() -> None:
    """All versions: `--help` beside `--arch` and `--task` lists their options too.

    fairseq's parser prints its help and ends before it has read which model is meant.
    """
    from fairseq import options

    def whole(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(parser: Any, input_args: Any = None, *args: Any, modify_parser: Any = None, **kwargs: Any) -> Any:
            given = sys.argv[1:] if input_args is None else list(input_args)
            rest = [word for word in given if word not in ("-h", "--help")]
            if len(rest) == len(given):
                return original(parser, input_args, *args, modify_parser=modify_parser, **kwargs)
            calls = itertools.count(1)

            def then_print(complete: Any) -> None:
                if modify_parser is not None:
                    modify_parser(complete)
                if next(calls) == 2:  # fairseq calls this before and after it adds the model's options
                    complete.print_help()
                    complete.exit()

            return original(parser, rest, *args, modify_parser=then_print, **kwargs)

        return wrapper

    _wrap(options, "parse_args_and_arch", whole)
