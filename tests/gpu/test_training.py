"""Training on a device against the CPU: every architecture's gradients, and updates by fairseq's trainer."""

import copy
import json

import pytest
import torch

from tests.models import test_architectures as small
from tests.tolerances import TOLERANCES, assert_close
from tests.training.runs import batches, begin, train

UPDATES = 20


def move(batch, device):
    return {
        name: move(value, device) if isinstance(value, dict) else value.to(device) if hasattr(value, "to") else value
        for name, value in batch.items()
    }


@pytest.mark.parametrize("arch", small.ARCHITECTURES)
def test_loss_and_gradients_of_an_architecture_are_the_cpus(arch, device):
    task = small.task(arch)
    # no dropout: another device draws other masks
    options = dict.fromkeys(("dropout", "attention_dropout", "weight_dropout", "input_dropout"), 0.0)
    on_cpu = small.build(arch, task, **options).train()
    moved, batch = copy.deepcopy(on_cpu).to(device), small.toy_batch(arch, task)
    results = []
    for model, inputs in ((on_cpu, batch), (moved, move(batch, device))):
        loss, size, _ = small.criterion(model, task)(model, inputs)
        (loss / size).backward()
        results.append([(loss / size).detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    want, got = results
    assert len(got) == len(want) > 1
    for a, b in zip(got, want, strict=True):
        assert_close(a.cpu(), b, torch.float32)


def losses(arch, device, *flags):
    """Return the losses per word of ``UPDATES`` updates by fairseq's trainer, each on another batch."""
    trainer = begin(False, device, "--lr", "1e-3", "--lr-scheduler", "fixed", *flags, arch=arch)
    return [logged["loss"] for logged in train(trainer, batches(UPDATES)).logged]


@pytest.fixture(scope="module")
def cpus():
    """The CPU's losses in float32, by architecture."""
    by_arch: dict[str, list[float]] = {}

    def of(arch):
        if arch not in by_arch:
            by_arch[arch] = losses(arch, torch.device("cpu"))
        return by_arch[arch]

    return of


PRECISIONS = {
    "float32": ([], torch.float32),
    "bfloat16": (["--bf16"], torch.bfloat16),
    "float16": (["--fp16"], torch.float16),
    "memory-efficient float16": (["--memory-efficient-fp16"], torch.float16),
    "amp": (["--amp"], torch.float16),
}


@pytest.mark.parametrize("arch", ["pla_lightconv_iwslt_de_en", "pla_dynamicconv_iwslt_de_en"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_updates_have_the_cpus_losses(arch, precision, device, cpus, record_property):
    flags, dtype = PRECISIONS[precision]
    if device.type == "cpu" and precision.endswith("float16"):
        flags, dtype = ["--bf16"], torch.bfloat16  # fairseq's own float16 needs a GPU
    got, want = losses(arch, device, *flags), cpus(arch)
    pairs = zip(got[::5], want[::5], strict=True)
    record_property("losses", json.dumps([f"{arch}, {precision}", *(f"{a:.6f} / {b:.6f}" for a, b in pairs)]))
    assert len(got) == len(want) == UPDATES
    assert want[-1] < want[0]
    rtol, atol = TOLERANCES[dtype]
    # errors accumulate over 20 updates; fairseq rounds to three decimals
    assert got == pytest.approx(want, rel=10 * rtol, abs=10 * atol + 1e-3)


@pytest.mark.parametrize("precision", ["float32", "amp"])
def test_updates_with_every_dropout_learn(precision, device):
    """The masks differ between devices; the same seed repeats them."""
    flags = ["--dropout", "0.1", "--attention-dropout", "0.1", "--weight-dropout", "0.1", *PRECISIONS[precision][0]]
    first, again = (losses("pla_dynamicconv_iwslt_de_en", device, *flags) for _ in range(2))
    assert first[-1] < first[0]
    assert first == pytest.approx(again, rel=1e-3)
