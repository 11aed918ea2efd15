"""Shims of training on today's numpy and torch: blocks of text, bfloat16 without a TPU, several processes on CPUs."""

from __future__ import annotations

import inspect
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch

from lightconv_plugin.compat.shim import Original, shim


class SetupError(RuntimeError):
    """A combination of options and machine that cannot train; the message says what to type instead."""


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
    def tpu_as_given(original: Original, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        parsed = original(parser, input_args, *args, **kwargs)
        flags = parsed[0] if isinstance(parsed, tuple) else parsed  # with parse_known, the rest comes beside them
        if getattr(flags, "tpu", False):
            flags.tpu = "--tpu" in (sys.argv[1:] if input_args is None else input_args)
        return parsed


def name_all_flags_at_once() -> None:
    """All versions, `fairseq-train`: what a command lacks is said in one sentence, with the flags to add to it.

    fairseq fails at one flag after the other, at the criterion of an adaptive softmax within the first backward pass.
    """
    from fairseq import options

    @shim(options, "parse_args_and_arch")
    def checked(original: Original, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        parsed = original(parser, input_args, *args, **kwargs)
        # fairseq-generate has an --arch too, but no --max-update
        trains = input_args is None and getattr(parsed, "arch", None) and hasattr(parsed, "max_update")
        if trains and (lacking := _lacking_flags(parsed)):
            reasons, flags = zip(*lacking, strict=True)
            sys.exit(f"error: {'; '.join(reasons)}. Add to the command: {' '.join(flags)}")
        return parsed


def _lacking_flags(args: Any) -> list[tuple[str, str]]:
    """Reasons why a training with these flags would fail, and for each the flags that mend it."""
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqLanguageModel
    from fairseq.utils import eval_str_list, split_paths

    lacking = []
    language_model = issubclass(ARCH_MODEL_REGISTRY[args.arch], FairseqLanguageModel)
    if language_model and "translation" in args.task:
        lacking.append((f"{args.arch} is a language model, and --task is {args.task}", "--task language_modeling"))
    elif not language_model and args.task == "language_modeling":
        lacking.append((f"{args.arch} is no language model, and --task is {args.task}", "--task translation"))
    cutoffs = eval_str_list(getattr(args, "adaptive_softmax_cutoff", None) or None, type=int)
    criterion = args.criterion
    if cutoffs and "cross_entropy" in criterion:
        lacking.append((f"--criterion {criterion} does not train an adaptive softmax", "--criterion adaptive_loss"))
        criterion = "adaptive_loss"
    elif not cutoffs and criterion == "adaptive_loss":
        lacking.append((f"--criterion {criterion} needs an adaptive softmax", "--criterion cross_entropy"))
        criterion = "cross_entropy"
    if criterion == "adaptive_loss" and args.ddp_backend in ("c10d", "pytorch_ddp"):
        reason = f"adaptive_loss does not train with --ddp-backend {args.ddp_backend}"
        lacking.append((reason, "--ddp-backend legacy_ddp"))
    dictionary = Path(split_paths(args.data)[0] if args.data else "", "dict.txt")
    if language_model and cutoffs and dictionary.is_file():
        types = 4 + sum(1 for _ in dictionary.open("rb"))  # and <s>, <pad>, </s>, <unk>
        if cutoffs[-1] > types:
            reason = f"the cut-offs {cutoffs} go beyond the {types} types of {dictionary}"
            cutoffs = [types // 10, types // 3]
            lacking.append((reason, f"--adaptive-softmax-cutoff {cutoffs[0]},{cutoffs[1]}"))
    tied = cutoffs and getattr(args, "adaptive_input", False) and args.tie_adaptive_weights
    if tied and eval_str_list(args.adaptive_input_cutoff, type=int) != cutoffs:
        flag = f"--adaptive-input-cutoff {','.join(map(str, cutoffs))}"
        lacking.append(("--tie-adaptive-weights needs the softmax's cut-offs for the input too", flag))
    if args.optimizer is None:
        lacking.append(("--optimizer is missing", "--optimizer adam --lr 0.001"))
    if args.max_tokens is None and args.batch_size is None:
        lacking.append(("the size of a batch is missing", "--max-tokens 4096"))
    return lacking


def _on_cpu(cfg: Any) -> bool:
    return not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available())


def train_data_parallel_on_cpu() -> None:
    """All torch versions, on CPUs only: `torchrun --nproc_per_node N -m fairseq_cli.train ... --cpu` trains one model.

    fairseq counts GPUs: without one it divides by zero, starts N separate trainings or trains nothing, talks NCCL, and
    hands a GPU number to DistributedDataParallel. Runs on GPUs are left as they are, and so is SLURM's own launching.
    """
    from fairseq.distributed import utils as distributed_utils
    from fairseq.models import distributed_fairseq_model

    @shim(distributed_utils, "call_main")
    def join_torchrun(original: Original, cfg: Any, main: Any, **kwargs: Any) -> Any:
        if _on_cpu(cfg):
            _use_launched_processes(cfg.distributed_training)
        return original(cfg, main, **kwargs)

    @shim(distributed_fairseq_model, "DistributedDataParallel")
    def no_device_on_cpu(original: Original, module: Any, *args: Any, **kwargs: Any) -> Any:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            kwargs.update(device_ids=None, output_device=None)
        return original(module, *args, **kwargs)


def _use_launched_processes(cfg: Any) -> None:
    if cfg.distributed_backend == "nccl":
        cfg.distributed_backend = "gloo"
    processes = int(os.environ.get("WORLD_SIZE", 1))  # as torchrun says it
    if cfg.distributed_init_method is None and processes > 1:
        cfg.distributed_init_method = "env://"
        cfg.distributed_world_size = processes
        cfg.distributed_rank = int(os.environ["RANK"])
        cfg.device_id = 0
        cfg.distributed_no_spawn = True
    count = cfg.distributed_world_size
    asked = cfg.distributed_init_method is not None or count > 1
    if asked and not cfg.distributed_no_spawn and "SLURM_JOB_ID" not in os.environ:
        raise SetupError(
            f"--distributed-world-size is {count} (its default is the number of GPUs), but on CPUs fairseq-train does "
            f"not start processes itself. Start them with: torchrun --nproc_per_node {max(count, 2)} -m "
            "fairseq_cli.train ... --cpu; or give --distributed-world-size 1, without --distributed-init-method."
        )


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


def refuse_what_cannot_train() -> None:
    """All versions: mistakes get a sentence instead of a deep error, or no checkpoint."""
    from fairseq.trainer import Trainer

    @shim(Trainer, "__init__")
    def check(original: Original, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if not __debug__:
            raise SetupError(
                "python -O leaves out asserts, in one of which fairseq writes checkpoint_last.pt and "
                "checkpoint_best.pt: train without -O (and without PYTHONOPTIMIZE)."
            )
        if hasattr(cfg, "common") and _on_cpu(cfg):
            if cfg.common.fp16:
                raise SetupError("--fp16 needs a GPU. On a CPU train with --bf16, or without either.")
            processes, part = int(os.environ.get("WORLD_SIZE", 1)), "distributed_training.distributed_"
            if processes > 1 and cfg.distributed_training.distributed_world_size == 1:  # under fairseq-hydra-train
                raise SetupError(
                    f"torchrun started {processes} processes, but each was about to train a model of its own. Give "
                    f"{part}init_method=env:// {part}no_spawn=true {part}world_size={processes} "
                    f"{part}backend=gloo '{part}rank=${{oc.env:RANK}}'."
                )
        return original(self, cfg, *args, **kwargs)
