"""The precision of a training or a search: what is asked for, what the devices compute in, and what is faster.

On a GPU fp16 and bf16 are fairseq's flags, which convert the model. On a CPU nothing is converted: in bf16 the operands
of matrix products are rounded, and parameters, activations, sums and Adam stay in float32. The plugin's models do so
where the environment has LIGHTCONV_MATMUL=bf16; fairseq's own stay in float32.
"""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scripts.common.errors import UserError
from scripts.common.process import ask_python
from scripts.fairseq_io.devices import Devices, batch_per_device
from scripts.pipeline.config import Config

VARIABLE = "LIGHTCONV_MATMUL"
CHOSEN_HERE = ("auto", "bf16")  # they become another precision by the machine and by what it measures
OURS = "pla_"  # begins the names of the plugin's architectures
FASTER = 1.1  # less is noise
# The row counts change from turn to turn, as those of batches do.
_MEASURE = """
import statistics, sys, time, torch
from lightconv_plugin import ops
from lightconv_plugin.ops.auxiliary.linear import lacking
if reason := lacking():
    sys.exit(print(reason))
rows, width, backward = map(int, sys.argv[1:])
torch.set_grad_enabled(bool(backward))
weight, times = torch.randn(width, width, requires_grad=True), {"fp32": [], "bf16": []}
ops.set_precision("bf16")
packed = {"bf16": None if backward else ops.pack_weight(weight)}  # a search packs its weights once
deadline, turn = time.perf_counter() + 1, -1
while turn < 5 or time.perf_counter() < deadline:
    x = torch.randn(max(1, rows - turn % 16), width, requires_grad=True)
    for precision, taken in times.items():
        ops.set_precision(precision)
        start = time.perf_counter()
        y = ops.linear(x, weight, packed=packed.get(precision))
        if backward:
            y.backward(x.detach())
        if turn >= 0:  # the first turn warms up
            taken.append(time.perf_counter() - start)
    turn += 1
fp32, bf16 = map(statistics.median, times.values())
print(fp32 / bf16)
"""


@dataclass(frozen=True)
class Products:
    """The matrix products of a batch: ``rows`` of ``width`` channels; ``backward``: with those of the gradients.
    ``ours``: the model is the plugin's.
    """

    rows: int
    width: int
    backward: bool
    ours: bool = True


@dataclass(frozen=True)
class Taken:
    """A precision, and a sentence that says why it is taken; None where it is the one that was asked for."""

    precision: str
    reason: str | None = None


def of_training(config: Config, devices: Devices) -> Products:
    """The products of an update; the most tokens of a batch stand for those that a real one has."""
    batch = batch_per_device(config.batch, devices.total) if config.batch else config.train
    return Products(
        int(batch.get("max-tokens") or 4096), _width(config.train), backward=True, ours=_is_ours(config.train)
    )


def of_search(train: Mapping[str, Any], generate: Mapping[str, Any]) -> Products:
    """The products of a search's step, by the flags of fairseq-train and of fairseq-generate."""
    rows = int(generate.get("beam") or 5) * int(generate.get("batch-size") or 32)
    return Products(rows, _width(train), backward=False, ours=_is_ours(train))


def _width(train: Mapping[str, Any]) -> int:
    # an architecture's own width is fairseq's to know; most are as wide or wider
    return int(train.get("encoder-embed-dim") or train.get("decoder-embed-dim") or 512)


def _is_ours(train: Mapping[str, Any]) -> bool:
    # of a published model no flags are known: it was converted into one of the plugin's
    return str(train.get("arch", OURS)).startswith(OURS)


def take_precision(asked: str, devices: Devices, products: Products, *, auto_on_gpu: str) -> Taken:
    """Choose the precision.

    The paper trains in fp16 (section 5.3), which is kept on every GPU: bf16, which needs no loss scaling, rounds to 8
    bits where fp16 rounds to 11, so a GPU that has both does not take it by itself. fairseq has no fp16 on a CPU.

    Args:
        asked: auto, fp32, bf16 or fp16.
        devices: where it runs.
        products: what is measured for auto on a CPU.
        auto_on_gpu: the precision that auto is on a GPU.

    Raises:
        UserError: bf16 is asked for on GPUs that do not compute in it.
    """
    if devices.gpu:
        taken = auto_on_gpu if asked == "auto" else asked
        if taken == "bf16" and not devices.bf16:
            raise UserError("precision is bf16, which these GPUs do not compute in; take fp16 or fp32")
        return Taken(taken, f"auto is {taken} on a GPU" if asked == "auto" else None)
    if asked == "fp16":
        return Taken("fp32", "fp16 is for GPUs, and torch sees none: trained in fp32")
    if asked == "fp32":
        return Taken("fp32")
    if not products.ours:
        return Taken("fp32", f"{asked} takes fp32: on a CPU fairseq's own models compute in nothing else")
    if asked == "bf16":
        lacking = bf16_unsupported_reason()
        return Taken("fp32", f"bf16 takes fp32: {lacking}") if lacking else Taken("bf16")
    if devices.nodes > 1:
        return Taken("fp32", "auto takes fp32: several machines could measure differently; bf16 has to be asked for")
    ratio = measured_ratio(products)
    if isinstance(ratio, str):
        return Taken("fp32", f"auto takes fp32: {ratio}")
    taken, verb = ("bf16", "are") if ratio >= FASTER else ("fp32", "are only")
    measured = f"{products.rows:,} x {products.width} products {verb} {ratio:.2f} times as fast in bf16 as in fp32"
    return Taken(taken, f"auto takes {taken}: {measured} (measured; {FASTER} is asked for)")


def take_training_precision(config: Config, devices: Devices) -> Taken:
    """Choose the precision that a configuration is trained in; see ``take_precision``."""
    return take_precision(
        config.precision, devices, of_training(config, devices), auto_on_gpu=config.published_precision
    )


def take_search_precision(asked: str, devices: Devices, train: Mapping[str, Any], generate: Mapping[str, Any]) -> Taken:
    """Choose the precision of a search, by the flags of fairseq-train and of fairseq-generate; auto is fp32 on a GPU.

    Raises:
        UserError: fairseq-generate does not compute in the precision; its --bf16 changes nothing.
    """
    check_precision(asked, gpu=devices.gpu)
    if asked == "bf16" and devices.gpu:
        raise UserError("--precision is bf16, and on a GPU fairseq generates in fp32 or fp16; take one of these")
    return take_precision(asked, devices, of_search(train, generate), auto_on_gpu="fp32")


def check_precision(given: str | None, *, gpu: bool) -> None:
    """Refuse a precision that the command line asks for and the devices do not have.

    Raises:
        UserError: it is fp16 and there is no GPU.
    """
    if given == "fp16" and not gpu:
        raise UserError("--precision is fp16, which is for GPUs, and torch sees none; take fp32 or bf16")


@functools.cache
def bf16_unsupported_reason() -> str | None:
    """Return the reason why the plugin would multiply in float32 on this processor, or None."""
    return _run("from lightconv_plugin.ops.auxiliary.linear import lacking; print(lacking() or '')") or None


@functools.cache
def measured_ratio(products: Products) -> float | str:
    """Time the products for about a second in both precisions, by turns: the time in float32 over that in bfloat16.

    Where the plugin would multiply in float32 anyway, the reason why.

    Raises:
        UserError: the plugin or torch cannot be imported.
    """
    arguments = [str(int(value)) for value in (products.rows, products.width, products.backward)]
    answer = _run(_MEASURE, *arguments)
    try:
        return float(answer)
    except ValueError:
        return answer


def _run(code: str, *arguments: str) -> str:
    return ask_python("-c", code, *arguments, failed="the products cannot be measured")[0]


def matmul_precision(precision: str, *, gpu: bool) -> list[str]:
    """Return the start of a command whose products on a CPU are in ``precision``, whatever the environment says."""
    if gpu or (precision != "bf16" and VARIABLE not in os.environ):
        return []
    return ["env", f"{VARIABLE}={precision}"]
