"""The precision of a training or a search: what is asked for, what the devices compute in, and what is faster.

On a GPU fp16 and bf16 are fairseq's flags, which convert the model. On a CPU nothing is converted: in bf16 the operands
of matrix products are rounded, and parameters, activations, sums and Adam stay in float32. In int8, for searches alone,
the weights of linear layers are rounded to 8 bits beforehand, and their inputs row by row. The plugin's models do so
where the environment has LIGHTCONV_MATMUL=bf16 or int8; fairseq's own stay in float32.
"""

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.process import ask_python
from scripts.config import Config
from scripts.fairseq_io.devices import Devices

VARIABLE = "LIGHTCONV_MATMUL"
OURS = "pla_"  # begins the names of the plugin's architectures


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision, and a sentence that says why it is taken; None where it is the one that was asked for."""

    precision: str
    reason: str | None = None


def take_precision(asked: str, train: Mapping[str, Any], *, gpu: bool, auto_on_gpu: str) -> PrecisionChoice:
    """Choose the precision.

    The paper trains in fp16 (section 5.3), which is kept on every GPU: bf16, which needs no loss scaling, rounds to 8
    bits where fp16 rounds to 11, so a GPU that has both does not take it by itself. fairseq has no fp16 on a CPU.

    Args:
        asked: auto, fp32, bf16 or fp16.
        train: the flags that the model is trained with; of a published one, which is the plugin's, none are known.
        gpu: it runs on a GPU.
        auto_on_gpu: the precision that auto is on a GPU.
    """
    if gpu:
        taken, reason = (auto_on_gpu, f"auto is {auto_on_gpu} on a GPU") if asked == "auto" else (asked, None)
        return PrecisionChoice(taken, reason)
    if asked == "fp16":
        return PrecisionChoice("fp32", "fp16 is for GPUs, and torch sees none: it is fp32")
    if asked == "fp32":
        return PrecisionChoice("fp32")
    if not _is_ours(train):
        return PrecisionChoice("fp32", f"{asked} takes fp32: on a CPU fairseq's own models compute in nothing else")
    if why_not := processor_reasons()["bf16" if asked == "bf16" else "slower"]:
        return PrecisionChoice("fp32", f"{asked} takes fp32: {why_not}")
    return PrecisionChoice("bf16", "auto takes bf16: this processor has fast units for it" if asked == "auto" else None)


def _is_ours(train: Mapping[str, Any]) -> bool:
    return str(train.get("arch", OURS)).startswith(OURS)


def take_training_precision(config: Config, devices: Devices) -> PrecisionChoice:
    """Choose the precision that a configuration is trained in; see ``take_precision``."""
    auto_on_gpu = config.published_precision
    return take_precision(config.precision, config.train, gpu=devices.gpu, auto_on_gpu=auto_on_gpu)


def take_search_precision(asked: str, train: Mapping[str, Any], *, gpu: bool) -> PrecisionChoice:
    """Choose the precision of a search in a model trained with these flags; auto is fp32 on a GPU.

    Raises:
        UserError: there is no search in this precision here. int8 is asked for to save time and memory, and no other
            precision is taken in its place; bf16 on a GPU would change nothing in fairseq-generate.
    """
    if asked == "bf16" and gpu:
        raise UserError("--precision is bf16, and on a GPU fairseq generates in fp32 or fp16; take one of these")
    if asked != "int8":
        return take_precision(asked, train, gpu=gpu, auto_on_gpu="fp32")
    if gpu:
        raise UserError("--precision is int8, which is for CPUs; on a GPU take fp32 or fp16")
    if not _is_ours(train):
        raise UserError("--precision is int8, and on a CPU fairseq's own models compute in nothing but fp32; take that")
    if why_not := processor_reasons()["int8"]:
        raise UserError(f"--precision cannot be int8, since {why_not}; take fp32")
    return PrecisionChoice("int8")


@functools.cache
def processor_reasons() -> dict[str, str | None]:
    """Return why the plugin would not multiply in ``bf16`` and in ``int8`` on this processor, and why float32 is to be
    preferred to bfloat16 (``slower``); None for no reason.

    A process asks: torch is heavy, and the plugin may have to be compiled.
    """
    said, _ = ask_python("-m", __name__, failed="the processor's units cannot be found out")
    return json.loads(said)


def matmul_precision(precision: str, *, gpu: bool) -> list[str]:
    """Return the start of a command whose products on a CPU are in ``precision``, whatever the environment says."""
    if gpu or (precision == "fp32" and VARIABLE not in os.environ):
        return []
    return ["env", f"{VARIABLE}={precision}"]


if __name__ == "__main__":
    from lightconv_plugin.ops.fused.linear import lacking, slower

    print(json.dumps({"bf16": lacking("bf16"), "int8": lacking("int8"), "slower": slower()}))
