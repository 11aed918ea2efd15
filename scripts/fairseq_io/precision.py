"""Choose the precision of a training or a search, from the requested one and the devices.

On a GPU, fp16 and bf16 are flags of fairseq, which convert the model. On a CPU nothing is converted. In bf16 the
operands of matrix products are rounded, and parameters, activations, sums and Adam stay in float32. In int8, which is
for searches alone, the weights of linear layers are rounded to 8 bits beforehand, and their inputs row by row. The
plugin's models do so if the environment variable LIGHTCONV_MATMUL is bf16 or int8; fairseq's own stay in float32.
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
OURS = "pla_"  # prefix of the names of the plugin's architectures


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision, and the reason for it in a sentence; None if it is the requested one."""

    precision: str
    reason: str | None = None


def take_precision(asked: str, train: Mapping[str, Any], *, gpu: bool, auto_on_gpu: str) -> PrecisionChoice:
    """Choose the precision.

    The paper trains in fp16 (section 5.3), and so do our configurations on every GPU. bf16 needs no loss scaling, but
    rounds to 8 bits where fp16 rounds to 11; therefore it is used only on request. fairseq has no fp16 on a CPU.

    Args:
        asked: auto, fp32, bf16 or fp16.
        train: the flags that the model is trained with; empty for a published model, which counts as the plugin's.
        gpu: the model runs on a GPU.
        auto_on_gpu: the precision that auto stands for on a GPU.
    """
    if gpu:
        taken, reason = (auto_on_gpu, f"auto is {auto_on_gpu} on a GPU") if asked == "auto" else (asked, None)
        return PrecisionChoice(taken, reason)
    if asked == "fp16":
        return PrecisionChoice("fp32", "fp16 falls back to fp32: it needs a GPU, and torch sees none")
    if asked == "fp32":
        return PrecisionChoice("fp32")
    if not _is_ours(train):
        return PrecisionChoice(
            "fp32", f"{asked} falls back to fp32: on a CPU fairseq's own models compute in nothing else"
        )
    if why_not := processor_reasons()["bf16" if asked == "bf16" else "slower"]:
        return PrecisionChoice("fp32", f"{asked} falls back to fp32: {why_not}")
    return PrecisionChoice("bf16", "auto is bf16: this processor has fast units for it" if asked == "auto" else None)


def _is_ours(train: Mapping[str, Any]) -> bool:
    return str(train.get("arch", OURS)).startswith(OURS)


def take_training_precision(config: Config, devices: Devices) -> PrecisionChoice:
    """Choose the precision that a configuration is trained in; see ``take_precision``."""
    auto_on_gpu = config.published_precision
    return take_precision(config.precision, config.train, gpu=devices.gpu, auto_on_gpu=auto_on_gpu)


def take_search_precision(asked: str, train: Mapping[str, Any], *, gpu: bool) -> PrecisionChoice:
    """Choose the precision of a search in a model trained with these flags; auto is fp32 on a GPU.

    Raises:
        UserError: this precision is not available for a search here. No other precision replaces int8, which is
            requested to save time and memory; bf16 on a GPU would change nothing in fairseq-generate.
    """
    if asked == "bf16" and gpu:
        raise UserError("--precision is bf16, and on a GPU fairseq generates in fp32 or fp16; choose one of these")
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
    """Return the reasons against precisions on this processor; None if there is no reason.

    ``bf16`` and ``int8`` are the reasons why the plugin cannot multiply in them, and ``slower`` is the reason to prefer
    float32 to bfloat16. Another process finds them, since it must import torch and perhaps compile the plugin. Its
    notice of a compilation is printed.
    """
    unknown = "cannot determine the processor's units"
    output, _ = ask_python("-m", __name__, failed=unknown, passed_on="lightconv_plugin: ")
    return json.loads(output)


def matmul_precision(precision: str, *, gpu: bool) -> list[str]:
    """Return the start of a command that sets the precision of products on a CPU, whatever the environment has."""
    if gpu or (precision == "fp32" and VARIABLE not in os.environ):
        return []
    return ["env", f"{VARIABLE}={precision}"]


if __name__ == "__main__":
    from lightconv_plugin.ops.fused.linear import lacking, slower

    print(json.dumps({"bf16": lacking("bf16"), "int8": lacking("int8"), "slower": slower()}))
