"""Shims of training on today's numpy and torch: blocks of text, bfloat16 without a TPU, several processes on CPUs."""

from __future__ import annotations

import inspect
import os
import sys
import types
from typing import Any

import torch

from lightconv_plugin.compat.shim import Original, shim


def restore_numpy_compat() -> None:
    """Needed from numpy 2.0 on, which removed `np.compat`, and from 2.4 on, which removed a name of an argument.

    fairseq uses `np.compat.long` in TokenBlockDataset (`--sample-break-mode eos`) and in LanguagePairDataset
    (`--num-batch-buckets`). On Python 3 it was `int`. The buckets' bounds come from `np.percentile(interpolation=...)`.
    """
    import numpy as np

    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]

    if "interpolation" not in inspect.signature(np.percentile).parameters:

        @shim(np, "percentile")
        def either_name(original: Original, *args: Any, **kwargs: Any) -> Any:
            if "interpolation" in kwargs:
                kwargs["method"] = kwargs.pop("interpolation")
            return original(*args, **kwargs)


def train_in_bfloat16_without_tpu() -> None:
    """All versions: `--bf16` on a GPU or CPU.

    fairseq's command line takes `--bf16` to mean a TPU, then fails for want of torch_xla. This is undone where flags
    are read, so that all that follows, such as the launch of several processes, meets the options as they were meant.
    """
    from fairseq import options

    @shim(options, "parse_args_and_arch")
    def no_tpu(original: Original, *args: Any, **kwargs: Any) -> Any:
        parsed = original(*args, **kwargs)
        flags = parsed[0] if isinstance(parsed, tuple) else parsed  # with parse_known, the rest comes beside them
        if getattr(flags, "bf16", False) and getattr(flags, "tpu", False):
            flags.tpu = False
        return parsed


def name_flags_that_do_not_fit() -> None:
    """All versions, `fairseq-train`: a task or a criterion that does not fit the model is named, with one that does.

    fairseq fails as it merges its configurations, or within the first backward pass.
    """
    from fairseq import options
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqLanguageModel
    from fairseq.models.fconv_lm import FConvLanguageModel
    from fairseq.models.lstm import LSTMModel
    from fairseq.models.lstm_lm import LSTMLanguageModel

    # they take notice of cut-offs, which some have by default, with --criterion adaptive_loss alone
    by_criterion = (FConvLanguageModel, LSTMLanguageModel, LSTMModel)

    @shim(options, "parse_args_and_arch")
    def checked(original: Original, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        parsed = original(parser, input_args, *args, **kwargs)
        # fairseq-generate has an --arch too, but no --max-update
        if input_args is not None or not getattr(parsed, "arch", None) or not hasattr(parsed, "max_update"):
            return parsed
        model = ARCH_MODEL_REGISTRY[parsed.arch]
        language_model = issubclass(model, FairseqLanguageModel)
        adaptive = bool(getattr(parsed, "adaptive_softmax_cutoff", None))
        if issubclass(model, by_criterion):
            adaptive = adaptive and parsed.criterion == "adaptive_loss"
        fitting = {"task": parsed.task, "criterion": parsed.criterion}
        if language_model and "translation" in parsed.task:
            fitting["task"] = "language_modeling"
        elif not language_model and parsed.task == "language_modeling":
            fitting["task"] = "translation"
        if adaptive and "cross_entropy" in parsed.criterion:
            fitting["criterion"] = "adaptive_loss"
        elif not adaptive and parsed.criterion == "adaptive_loss":
            fitting["criterion"] = "cross_entropy"
        if missing := [f"--{flag} {name}" for flag, name in fitting.items() if name != getattr(parsed, flag)]:
            sys.exit(
                f"error: {parsed.arch} is {'a' if language_model else 'no'} language model, with "
                f"{'an' if adaptive else 'no'} adaptive softmax; got --task {parsed.task} and --criterion "
                f"{parsed.criterion}. Add to the command: {' '.join(missing)}"
            )
        return parsed


def _on_cpu(cfg: Any) -> bool:
    return cfg.common.cpu or not torch.cuda.is_available()


def train_data_parallel_on_cpu() -> None:
    """All torch versions, on CPUs only: `torchrun --nproc_per_node N -m fairseq_cli.train ... --cpu` trains one model.

    fairseq counts GPUs: without one it divides by zero, starts N separate trainings or trains nothing, talks NCCL, and
    hands a GPU number to DistributedDataParallel. Runs on GPUs are left as they are, and so is SLURM's own launching.
    """
    from fairseq.distributed import utils as distributed_utils
    from fairseq.models import distributed_fairseq_model

    @shim(distributed_utils, "call_main")
    def join_torchrun(original: Original, cfg: Any, main: Any, **kwargs: Any) -> Any:
        own, processes = cfg.distributed_training, int(os.environ.get("WORLD_SIZE", 1))  # as torchrun says it
        if _on_cpu(cfg):
            if own.distributed_backend == "nccl":
                own.distributed_backend = "gloo"
            if own.distributed_init_method is None and processes > 1:
                own.distributed_init_method = "env://"
                own.distributed_world_size = processes
                own.distributed_rank = int(os.environ["RANK"])
                own.distributed_no_spawn = True
            asked = own.distributed_init_method is not None or own.distributed_world_size > 1
            if asked and not own.distributed_no_spawn and "SLURM_JOB_ID" not in os.environ:
                raise RuntimeError(
                    "on CPUs fairseq-train starts no processes itself, and would train nothing: start them with "
                    "torchrun --nproc_per_node N -m fairseq_cli.train ... --cpu"
                )
        return original(cfg, main, **kwargs)

    @shim(distributed_fairseq_model, "DistributedDataParallel")
    def no_device_on_cpu(original: Original, module: Any, *args: Any, **kwargs: Any) -> Any:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            kwargs.update(device_ids=None, output_device=None)
        return original(module, *args, **kwargs)


def divide_by_the_loss_scale_once() -> None:
    """All versions, `--amp` on a GPU: the gradients are divided by the loss scale once, not twice.

    fairseq has torch's scaler divide those of the optimizer that it wraps, and then make a step of the wrapper. The
    scaler takes that for another optimizer, and divides again.
    """
    from fairseq.optim.amp_optimizer import AMPOptimizer

    @shim(AMPOptimizer, "step")
    def step_of_the_wrapped(original: Original, self: Any) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def refuse_python_without_asserts() -> None:
    """All versions: without asserts fairseq writes no checkpoint_last.pt and no checkpoint_best.pt.

    And what torchrun starts of fairseq-hydra-train on CPUs, which completes no launch, would train apart.
    """
    from fairseq.trainer import Trainer

    @shim(Trainer, "__init__")
    def check(original: Original, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if not __debug__:
            raise RuntimeError(
                "python -O leaves out asserts, in one of which fairseq writes checkpoint_last.pt and "
                "checkpoint_best.pt: train without -O (and without PYTHONOPTIMIZE)"
            )
        processes, part = int(os.environ.get("WORLD_SIZE", 1)), "distributed_training.distributed_"
        alone = hasattr(cfg, "common") and _on_cpu(cfg) and cfg.distributed_training.distributed_world_size == 1
        if processes > 1 and alone:
            raise RuntimeError(
                f"torchrun started {processes} processes, but each was about to train a model of its own. Give "
                f"{part}init_method=env:// {part}no_spawn=true {part}world_size={processes} {part}backend=gloo "
                f"'{part}rank=${{oc.env:RANK}}'"
            )
        return original(self, cfg, *args, **kwargs)
