"""``bench.py train``: updates as fairseq-train makes them, by model."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lightconv_plugin.compat import SetupError
from scripts.benchmarks.timing import interleaved
from scripts.common.errors import UserError
from scripts.fairseq_io.models import Translation, translation

COLUMNS = [
    ("model", "model", "{}"), ("kernels", "kernels", "{}"), ("ms an update", "update_ms", "{:.0f}"),
    ("words/s", "words_a_second", "{:,.0f}"), ("to fairseq's", "to_peer", "{:.2f}x"),
    ("to its transformer", "to_transformer", "{:.2f}x"),
]  # fmt: skip
LONGEST = 32  # words of a sentence


@dataclass(frozen=True)
class Entry:
    """A model to train: its architecture and flags, and the peer it is compared with."""

    label: str
    kernels: str
    arch: str
    flags: tuple[str, ...]
    peer: str | None = None


def small_models() -> list[Entry]:
    """d = 128, two blocks a side, as two CPU cores can train; kernels 3,15 and 31,31."""
    size: list[str] = []
    for side in ("encoder", "decoder"):
        size += [f"--{side}-layers", "2", f"--{side}-embed-dim", "128", f"--{side}-ffn-embed-dim", "256"]
        size += [f"--{side}-attention-heads", "4"]
    entries = [Entry("fairseq transformer", "", "transformer", tuple(size))]
    for kernels in ("3,15", "31,31"):
        conv = [*size]
        for side in ("encoder", "decoder"):
            conv += [f"--{side}-kernel-size-list", f"[{kernels}]", f"--{side}-conv-dim", "128"]
        for operator in ("lightweight", "dynamic"):
            kind = ["--encoder-conv-type", operator, "--decoder-conv-type", operator]
            name = {"lightweight": "lightconv", "dynamic": "dynamicconv"}[operator]
            theirs = f"fairseq {name} {kernels}"
            glu = ["--encoder-glu", "1", "--decoder-glu", "1"]
            entries.append(Entry(theirs, kernels, "lightconv", (*conv, *kind, *glu)))
            faster = [*glu, "--criterion", "pla_label_smoothed_cross_entropy"]
            ours = f"ours {name} {kernels}"
            entries.append(Entry(ours, kernels, f"pla_{name}_wmt_en_de_big", (*conv, *faster), theirs))
    return entries


def measure(
    entries: list[Entry], *, vocab_size: int, tokens: int, device: torch.device, flags: list[str], seconds: float
) -> Iterator[dict[str, Any]]:
    """One record a model; the models take turns, an update each."""
    if tokens < LONGEST:
        raise UserError(f"--tokens {tokens} has no room for a sentence of {LONGEST} words; give at least {LONGEST}")
    cases, words = {}, 0
    for entry in entries:
        try:
            built = translation(entry.arch, vocab_size, [*_recipe(tokens, device), *entry.flags, *flags])
            cases[entry.label], words = updates(built, tokens)
        except (SetupError, ValueError, AssertionError) as error:  # fairseq refuses by asserting
            raise UserError(f"{entry.label} with --flags={shlex.join(flags)!r}: {error}") from error
    times = interleaved(cases, device, seconds=seconds)
    baseline = times.get("fairseq transformer")
    for entry in entries:
        taken = times[entry.label]
        yield {
            "model": entry.label,
            "kernels": entry.kernels,
            "update_ms": taken * 1e3,
            "words_a_second": words / taken,
            "to_peer": times[entry.peer] / taken if entry.peer else None,
            "to_transformer": baseline / taken if baseline else None,
        }


def updates(built: Translation, tokens: int) -> tuple[Callable[[], object], int]:
    """A function that makes one update on a batch of its own, and how many target words a batch has."""
    from fairseq.trainer import Trainer

    criterion = built.task.build_criterion(built.cfg.criterion)
    trainer = Trainer(built.cfg, built.task, built.model, criterion)
    generator = torch.Generator().manual_seed(1)
    batch = _batch(built, tokens, generator)
    trainer.begin_epoch(1)
    return lambda: trainer.train_step([batch]), int(batch["ntokens"])


def _recipe(tokens: int, device: torch.device) -> list[str]:
    # only what any optimiser takes, so that --flags may name another
    flags = ["--optimizer", "adam", "--lr", "1e-5", "--lr-scheduler", "fixed"]
    flags += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--dropout", "0.1"]
    flags += ["--max-tokens", str(tokens), "--share-all-embeddings", "--log-format", "none"]
    return flags + (["--cpu"] if device.type == "cpu" else [])


def _batch(built: Translation, tokens: int, generator: torch.Generator) -> dict[str, Any]:
    """Sentences of 24 to ``LONGEST`` words, as many as the batch takes, padded as fairseq pads them."""
    from fairseq.data.language_pair_dataset import collate

    words = built.task.source_dictionary

    def sentence(length: int) -> torch.Tensor:
        ids = torch.randint(words.nspecial, len(words), (length,), generator=generator)
        ids[-1] = words.eos()
        return ids

    lengths = torch.randint(24, LONGEST + 1, (tokens // LONGEST, 2), generator=generator).tolist()
    samples = [
        {"id": number, "source": sentence(source), "target": sentence(target)}
        for number, (source, target) in enumerate(lengths)
    ]
    return collate(samples, pad_idx=words.pad(), eos_idx=words.eos(), left_pad_source=True)
