"""A few updates of a small model, by fairseq's own trainer or by graphs."""

import functools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data.language_pair_dataset import collate
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from lightconv_plugin import register  # noqa: F401  registers the models
from lightconv_plugin.ops import library
from lightconv_plugin.ops.fused import update as ending
from lightconv_plugin.training import CapturedTrainer
from lightconv_plugin.training.shapes import Padding, Shape, shape_of
from lightconv_plugin.training.updates import Updates
from scripts.fairseq_io.models import translation
from tests.tape import as_operator, capture_on_cpu

TYPES, LONGEST = 60, 16
SIDES = ("encoder", "decoder")
SIZE = [
    word
    for side in SIDES
    for word in (f"--{side}-layers", "2", f"--{side}-embed-dim", "32", f"--{side}-ffn-embed-dim", "64")
]
KERNELS = [word for side in SIDES for word in (f"--{side}-kernel-size-list", "[3,5]")]
RECIPE = [
    "--optimizer", "adam", "--lr", "3e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "5",
    "--clip-norm", "1", "--criterion", "pla_label_smoothed_cross_entropy", "--label-smoothing", "0.1",
    "--max-tokens", "400", "--log-format", "none", "--share-all-embeddings", "--weight-decay", "0.01",
    "--log-interval", "1",
]  # fmt: skip
DROPOUT = ["--dropout", "0.2", "--attention-dropout", "0.1", "--weight-dropout", "0.1", "--input-dropout", "0.1"]
NO_DROPOUT = ["--dropout", "0", "--attention-dropout", "0"]
NO_DROPPED_WEIGHTS = ["--weight-dropout", "0", "--input-dropout", "0"]


@dataclass
class Run:
    """Result of a training: its trainer, and the values that fairseq logs for each update."""

    trainer: Any
    logged: list[dict[str, float]] = field(default_factory=list)


def batches(count: int, seed: int = 1, *, sentences: int = 16, longest: int = LONGEST) -> list[dict[str, Any]]:
    """Return batches of ``sentences`` sentences of up to ``longest`` words; each of the first two has one that long."""
    generator = torch.Generator().manual_seed(seed)
    collated = []
    for number in range(count):
        lengths = torch.randint(3, longest + 1, (sentences,), generator=generator).tolist()
        lengths[0] = longest if number < 2 else lengths[0]
        texts = [torch.randint(4, TYPES, (n,), generator=generator) for n in lengths]
        pairs = [{"id": i, "source": words, "target": words.flip(0)} for i, words in enumerate(texts)]
        collated.append(collate(pairs, pad_idx=1, eos_idx=2, left_pad_source=True))
    return collated


def mixed(count: int) -> list[Any]:
    """Return batches of long and of short sentences in turn."""
    pairs = zip(batches(count), batches(count, sentences=9, longest=7), strict=True)
    return [batch for pair in pairs for batch in pair]


def updates_on_cpu(trainer: Any, padding: Padding, planned: list[Shape], *, graphs: bool) -> Updates:
    """Return updates in place of a ``CapturedTrainer``'s, which need a GPU; ``graphs``: as graphs on the tape."""
    model, criterion = trainer.get_model(), trainer.get_criterion()
    processes = trainer.data_parallel_world_size
    return Updates(model, criterion, trainer.task, padding, planned, capture=graphs, processes=processes)


def make_updates_on_cpu(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    """Make captured trainers run their updates on the CPU, as graphs on the tape or kernel by kernel."""
    monkeypatch.setattr(CapturedTrainer, "_make_updates", functools.partialmethod(updates_on_cpu, graphs=graphs))


def capture_updates_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make captured trainers run their updates as graphs on the CPU's tape."""
    capture_on_cpu(monkeypatch)
    assert library.load() is None
    for name in ("decide", "adam"):
        monkeypatch.setattr(ending, name, as_operator(getattr(ending, name)))
    make_updates_on_cpu(monkeypatch, graphs=True)


def plan_for(trainer: Any, samples: list[Any]) -> None:
    """Make a trainer plan for the shapes of these batches, as if they were those of its epoch."""
    trainer._batching = SimpleNamespace(shapes=[shape_of(sample) for sample in samples])


def begin(captured: bool, device: torch.device, *flags: str, arch: str = "pla_dynamicconv_iwslt_de_en") -> Any:
    """Return a trainer of a small model with the same weights each time; ``captured``: with --cuda-graphs."""
    torch.manual_seed(1)
    convolutions = [*KERNELS, *NO_DROPPED_WEIGHTS] if arch != "transformer" else []
    on_cpu = ["--cpu"] if device.type == "cpu" else []
    graphs = ["--cuda-graphs"] if captured else []
    built = translation(arch, TYPES, [*SIZE, *convolutions, *RECIPE, *NO_DROPOUT, *on_cpu, *graphs, *flags])
    built.cfg.common.tpu = False  # fairseq sets it with --bf16
    trainer = Trainer(built.cfg, built.task, built.model, built.task.build_criterion(built.cfg.criterion))
    trainer.consolidate_optimizer()
    trainer.begin_epoch(1)
    return trainer


def train(trainer: Any, samples: list[Any], *, update_freq: int = 1) -> Run:
    """Make updates, and collect the values that fairseq logs after each."""
    run = Run(trainer)
    metrics.reset()
    for first in range(0, len(samples), update_freq):
        with metrics.aggregate("train_inner"):
            logged = trainer.train_step(samples[first : first + update_freq])
        seen = metrics.get_smoothed_values("train_inner")
        metrics.reset_meters("train_inner")
        run.logged.append({} if logged is None else {name: float(value) for name, value in seen.items()})
    return run


def parameters(trainer: Any) -> torch.Tensor:
    """Return all parameters of the model as one vector, in float32 on the host."""
    return torch.cat([p.detach().float().flatten().cpu() for p in trainer.get_model().parameters()])
