"""The precision of a training or a search: what is asked for, what the devices compute in, and what is faster.

On a GPU fp16 and bf16 are fairseq's flags, which convert the model. On a CPU nothing is converted: in bf16 the operands
of matrix products are rounded, and parameters, activations, sums and Adam stay in float32. The plugin's models do so
where the environment has LIGHTCONV_MATMUL=bf16; fairseq's own stay in float32.
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


def take_precision(asked: str, devices: Devices, train: Mapping[str, Any], *, auto_on_gpu: str) -> PrecisionChoice:
    """Choose the precision.

    The paper trains in fp16 (section 5.3), which is kept on every GPU: bf16, which needs no loss scaling, rounds to 8
    bits where fp16 rounds to 11, so a GPU that has both does not take it by itself. fairseq has no fp16 on a CPU.

    Args:
        asked: auto, fp32, bf16 or fp16.
        devices: where it runs.
        train: the flags that the model is trained with; of a published one, which is the plugin's, none are known.
        auto_on_gpu: the precision that auto is on a GPU.
    """
    if devices.gpu:
        taken, reason = (auto_on_gpu, f"auto is {auto_on_gpu} on a GPU") if asked == "auto" else (asked, None)
        return PrecisionChoice(taken, reason)
    if asked == "fp16":
        return PrecisionChoice("fp32", "fp16 is for GPUs, and torch sees none: it is fp32")
    if asked == "fp32":
        return PrecisionChoice("fp32")
    if not str(train.get("arch", OURS)).startswith(OURS):
        return PrecisionChoice("fp32", f"{asked} takes fp32: on a CPU fairseq's own models compute in nothing else")
    if why_not := bf16_reasons()["unsupported" if asked == "bf16" else "slower"]:
        return PrecisionChoice("fp32", f"{asked} takes fp32: {why_not}")
    return PrecisionChoice("bf16", "auto takes bf16: this processor has fast units for it" if asked == "auto" else None)


def take_training_precision(config: Config, devices: Devices) -> PrecisionChoice:
    """Choose the precision that a configuration is trained in; see ``take_precision``."""
    return take_precision(config.precision, devices, config.train, auto_on_gpu=config.published_precision)


def take_search_precision(asked: str, devices: Devices, train: Mapping[str, Any]) -> PrecisionChoice:
    """Choose the precision of a search in a model trained with these flags; auto is fp32 on a GPU.

    Raises:
        UserError: fairseq-generate does not compute in the precision; its --bf16 changes nothing.
    """
    if asked == "bf16" and devices.gpu:
        raise UserError("--precision is bf16, and on a GPU fairseq generates in fp32 or fp16; take one of these")
    return take_precision(asked, devices, train, auto_on_gpu="fp32")


@functools.cache
def bf16_reasons() -> dict[str, str | None]:
    """Return why the plugin would multiply in float32 on this processor (``unsupported``), and why float32 is to be
    preferred to bfloat16 (``slower``); None for no reason.

    A process asks: torch is heavy, and the plugin may have to be compiled.
    """
    said, _ = ask_python("-m", __name__, failed="the processor's units cannot be found out")
    return json.loads(said)


def matmul_precision(precision: str, *, gpu: bool) -> list[str]:
    """Return the start of a command whose products on a CPU are in ``precision``, whatever the environment says."""
    if gpu or (precision != "bf16" and VARIABLE not in os.environ):
        return []
    return ["env", f"{VARIABLE}={precision}"]


if __name__ == "__main__":
    from lightconv_plugin.ops.fused.linear import lacking, slower

    print(json.dumps({"unsupported": lacking(), "slower": slower()}))
