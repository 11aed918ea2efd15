"""Changes to fairseq's training: numpy 2, bfloat16 without a TPU, several processes on CPUs, the trainer's class."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from typing import Any

import numpy as np
import torch

from lightconv_plugin.compat.shim import ModuleView, Original, shim


def restore_numpy_names() -> None:
    """Give fairseq's data modules two names that numpy removed: ``np.compat`` in 2.0, and an argument in 2.4.

    fairseq uses ``np.compat.long``, which was ``int`` on Python 3, in TokenBlockDataset (``--sample-break-mode eos``)
    and in LanguagePairDataset (``--num-batch-buckets``). It computes the bounds of the buckets by
    ``np.percentile(interpolation=...)``.
    """
    from fairseq.data import data_utils, language_pair_dataset, token_block_dataset

    def percentile(*args: Any, **kwargs: Any) -> Any:
        if "interpolation" in kwargs:
            kwargs["method"] = kwargs.pop("interpolation")
        return np.percentile(*args, **kwargs)

    numpy = ModuleView(np, compat=types.SimpleNamespace(long=int), percentile=percentile)
    for module in (data_utils, language_pair_dataset, token_block_dataset):
        setattr(module, "np", numpy)  # noqa: B010


def train_in_bfloat16_without_tpu() -> None:
    """Let ``--bf16`` train on a GPU or CPU.

    fairseq's parser sets ``--tpu`` if ``--bf16`` is set, and then fails without torch_xla. This resets ``--tpu`` where
    flags are parsed, so that all later code, such as the launch of several processes, sees the right options.
    """
    from fairseq import options

    @shim(options, "parse_args_and_arch")
    def parse_without_tpu(original: Original, *args: Any, **kwargs: Any) -> Any:
        parsed = original(*args, **kwargs)
        # with parse_known, the result is a tuple of the flags and the unknown arguments
        flags = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(flags, "bf16", False) and getattr(flags, "tpu", False):
            flags.tpu = False
        return parsed


def check_task_and_criterion() -> None:
    """End ``fairseq-train`` with a message if the task or the criterion does not fit the model.

    The message names flags that fit. Without it, fairseq would fail while it merges its configurations, or in the first
    backward pass.
    """
    from fairseq import options
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqLanguageModel
    from fairseq.models.fconv_lm import FConvLanguageModel
    from fairseq.models.lstm import LSTMModel
    from fairseq.models.lstm_lm import LSTMLanguageModel

    # they use their cut-offs, which some have by default, only with --criterion adaptive_loss
    adaptive_by_criterion = (FConvLanguageModel, LSTMLanguageModel, LSTMModel)

    @shim(options, "parse_args_and_arch")
    def parse_and_check(original: Original, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        parsed = original(parser, input_args, *args, **kwargs)
        # fairseq-generate has an --arch too, but no --max-update
        if input_args is not None or not getattr(parsed, "arch", None) or not hasattr(parsed, "max_update"):
            return parsed
        model = ARCH_MODEL_REGISTRY[parsed.arch]
        is_language_model = issubclass(model, FairseqLanguageModel)
        is_adaptive = bool(getattr(parsed, "adaptive_softmax_cutoff", None))
        if issubclass(model, adaptive_by_criterion):
            is_adaptive = is_adaptive and parsed.criterion == "adaptive_loss"
        fitting = {"task": parsed.task, "criterion": parsed.criterion}
        if is_language_model and "translation" in parsed.task:
            fitting["task"] = "language_modeling"
        elif not is_language_model and parsed.task == "language_modeling":
            fitting["task"] = "translation"
        if is_adaptive and "cross_entropy" in parsed.criterion:
            fitting["criterion"] = "adaptive_loss"
        elif not is_adaptive and parsed.criterion == "adaptive_loss":
            fitting["criterion"] = "cross_entropy"
        if missing := [f"--{flag} {name}" for flag, name in fitting.items() if name != getattr(parsed, flag)]:
            sys.exit(
                f"error: {parsed.arch} is {'a' if is_language_model else 'not a'} language model, with "
                f"{'an' if is_adaptive else 'no'} adaptive softmax; got --task {parsed.task} and --criterion "
                f"{parsed.criterion}. Add to the command: {' '.join(missing)}"
            )
        return parsed


def _runs_on_cpu(cfg: Any) -> bool:
    return cfg.common.cpu or not torch.cuda.is_available()


def train_data_parallel_on_cpu() -> None:
    """Let ``torchrun --nproc_per_node N -m fairseq_cli.train ... --cpu`` train one model.

    fairseq counts GPUs. Without one it divides by zero, starts N separate trainings or trains nothing, uses NCCL, and
    passes a GPU's index to DistributedDataParallel. Training on GPUs and processes that SLURM launches do not change.
    """
    from fairseq.distributed import utils
    from fairseq.models import distributed_fairseq_model

    @shim(utils, "call_main")
    def join_torchrun(original: Original, cfg: Any, main: Any, **kwargs: Any) -> Any:
        settings, processes = cfg.distributed_training, int(os.environ.get("WORLD_SIZE", 1))  # set by torchrun
        if _runs_on_cpu(cfg):
            if settings.distributed_backend == "nccl":
                settings.distributed_backend = "gloo"
            if settings.distributed_init_method is None and processes > 1:
                settings.distributed_init_method = "env://"
                settings.distributed_world_size = processes
                settings.distributed_rank = int(os.environ["RANK"])
                settings.distributed_no_spawn = True
            is_parallel = settings.distributed_init_method is not None or settings.distributed_world_size > 1
            if is_parallel and not settings.distributed_no_spawn and "SLURM_JOB_ID" not in os.environ:
                raise RuntimeError(
                    "fairseq-train starts no processes itself on CPUs, so it would train nothing: start them with "
                    "torchrun --nproc_per_node N -m fairseq_cli.train ... --cpu"
                )
        return original(cfg, main, **kwargs)

    @shim(distributed_fairseq_model, "DistributedDataParallel")
    def without_device_on_cpu(original: Original, module: Any, *args: Any, **kwargs: Any) -> Any:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            kwargs.update(device_ids=None, output_device=None)
        return original(module, *args, **kwargs)


def divide_by_the_loss_scale_once() -> None:
    """Divide the gradients of ``--amp`` on a GPU by the loss scale once, not twice.

    fairseq passes the wrapped optimizer to torch's scaler, which divides the gradients, and then the wrapper, for the
    update. The scaler takes the wrapper for another optimizer, and divides again.
    """
    from fairseq.optim.amp_optimizer import AMPOptimizer

    @shim(AMPOptimizer, "step")
    def step_of_the_wrapped(original: Original, self: Any) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def refuse_lost_trainings() -> None:
    """Refuse ``python -O``, which skips the assert in which fairseq writes checkpoint_last.pt and checkpoint_best.pt.

    Also refuse fairseq-hydra-train under torchrun on CPUs, where each process would train a separate model.
    """
    from fairseq.trainer import Trainer

    @shim(Trainer, "__init__")
    def check(original: Original, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if not __debug__:
            raise RuntimeError(
                "python -O leaves out asserts, and fairseq writes checkpoint_last.pt and checkpoint_best.pt within "
                "one: train without -O (and without PYTHONOPTIMIZE)"
            )
        processes, prefix = int(os.environ.get("WORLD_SIZE", 1)), "distributed_training.distributed_"
        is_alone = hasattr(cfg, "common") and _runs_on_cpu(cfg) and cfg.distributed_training.distributed_world_size == 1
        if processes > 1 and is_alone:
            raise RuntimeError(
                f"torchrun started {processes} processes, but each would train a separate model. Add to the command: "
                f"{prefix}init_method=env:// {prefix}no_spawn=true {prefix}world_size={processes} {prefix}backend=gloo "
                f"'{prefix}rank=${{oc.env:RANK}}'"
            )
        return original(self, cfg, *args, **kwargs)


def add_flag(name: str, help_text: str) -> None:
    """Add a flag to fairseq-train, and the field ``optimization.NAME`` to its configuration, False by default."""
    from fairseq.dataclass.configs import OptimizationConfig
    from fairseq.dataclass.initialize import hydra_init

    fields = OptimizationConfig.__dataclass_fields__
    if name in fields:
        return
    field: Any = dataclasses.field(default=False, metadata={"help": help_text})
    field.name, field.type, field._field_type = name, bool, fields["lr"]._field_type
    setattr(OptimizationConfig, name, False)
    fields[name], OptimizationConfig.__annotations__[name] = field, bool
    hydra_init()  # again, since hydra has read the fields already


def make_trainers(flag: str, kind: type[Any]) -> None:
    """Make ``Trainer(...)`` return a ``kind``, which is a subclass of ``Trainer``, if a flag is set.

    This changes the class, and not the name ``Trainer`` in ``fairseq_cli.train``, since torchrun runs
    ``python -m fairseq_cli.train``, where that module has another name.
    """
    from fairseq.trainer import Trainer

    def choose(cls: type[Trainer], cfg: Any, *args: Any, **kwargs: Any) -> Trainer:
        is_set = cls is Trainer and getattr(getattr(cfg, "optimization", cfg), flag, False)
        trainer: Trainer = object.__new__(kind if is_set else cls)
        return trainer

    Trainer.__new__ = staticmethod(choose)
