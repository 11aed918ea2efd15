"""``scripts.bench train``: the time of the updates that fairseq-train makes, for each model."""

import itertools
import shlex
import statistics
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from data_prep.common.errors import UserError
from scripts.bench.timing import Row, precisions, products_in, spread, take_turns
from scripts.fairseq_io.models import TaskAndModel, translation

LONGEST = 32  # words of the longest sentence
LENGTHS = (8, 64)  # range of the longest sentence's length if the shapes differ
WARM_UP = 33  # updates with graphs that are not timed: captures, and first comparisons with fairseq's updates
TRANSFORMER = "fairseq transformer"


@dataclass(frozen=True)
class Entry:
    """A model to train: its architecture and flags, and the peer it is compared with."""

    label: str
    arch: str
    flags: tuple[str, ...]
    peer: str | None = None
    precision: str = "fp32"


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Yield a table for each width."""
    several = precisions(args)
    for width in args.widths:
        entries = models(width, args.layers, graphs=device.type == "cuda")
        chosen = [entry for entry in entries if any(word in entry.label for word in args.models.split(","))]
        if not chosen:
            raise UserError(f"--models {args.models} names none of {', '.join(entry.label for entry in entries)}")
        yield measure(args, device, in_precisions(chosen, several), width)


def models(width: int, layers: list[int], *, graphs: bool = False) -> list[Entry]:
    """Return the models to time, with kernel widths that grow (3, 15, 31, ...) and with 31 throughout.

    Args:
        width: number of channels.
        layers: numbers of blocks in encoder and decoder.
        graphs: add each model a second time, with its updates as CUDA graphs.
    """

    def side(name: str, count: int, *more: str) -> list[str]:
        size = [f"--{name}-layers", str(count), f"--{name}-embed-dim", str(width), *more]
        return [*size, f"--{name}-ffn-embed-dim", str(2 * width), f"--{name}-attention-heads", "4"]

    # as many blocks on both sides, like the Transformers that the paper compares with
    entries = [Entry(TRANSFORMER, "transformer", (*side("encoder", layers[1]), *side("decoder", layers[1])))]
    for growing in (True, False):
        conv, lists = ["--encoder-glu", "1", "--decoder-glu", "1"], []
        for name, count in zip(("encoder", "decoder"), layers, strict=True):
            lists.append(",".join(map(str, [3, 15, *[31] * count][:count] if growing else [31] * count)))
            conv += side(name, count, f"--{name}-kernel-size-list", f"[{lists[-1]}]", f"--{name}-conv-dim", str(width))
        for name, operator in (("lightconv", "lightweight"), ("dynamicconv", "dynamic")):
            theirs = f"fairseq {name} {lists[0]}"
            kind = ("--encoder-conv-type", operator, "--decoder-conv-type", operator)
            faster = ("--criterion", "pla_label_smoothed_cross_entropy")
            entries.append(Entry(theirs, "lightconv", (*conv, *kind)))
            entries.append(Entry(f"ours {name} {lists[0]}", f"pla_{name}_wmt_en_de_big", (*conv, *faster), theirs))
    if not graphs:
        return entries
    captured = [
        replace(
            entry,
            label=f"{entry.label}, --cuda-graphs",
            flags=(*entry.flags, "--cuda-graphs"),
            peer=entry.peer or entry.label,
        )
        for entry in entries
    ]
    return [entry for pair in zip(entries, captured, strict=True) for entry in pair]


def in_precisions(entries: list[Entry], precisions: list[str]) -> list[Entry]:
    """Return fairseq's Transformer and our models in every precision, and fairseq's other models in fp32."""
    return [
        replace(entry, precision=precision)
        for entry in entries
        for precision in precisions
        if precision == "fp32" or entry.peer or entry.label == TRANSFORMER
    ]


def measure(args: Namespace, device: torch.device, entries: list[Entry], width: int) -> Iterator[Row]:
    """Yield a row for each model; the models take turns."""
    flags = shlex.split(args.flags)
    cases: dict[tuple[str, str], Training] = {}
    for entry in entries:
        built = translation(entry.arch, args.vocab_size, [*_recipe(args.tokens, device, flags), *entry.flags, *flags])
        cases[entry.label, entry.precision] = Training(built, args.tokens, args.shapes, entry.precision)
    turns = take_turns(cases, args.seconds)
    medians = {key: statistics.median(times) for key, times in turns.items()}
    for entry in entries:
        case, taken = cases[entry.label, entry.precision], medians[entry.label, entry.precision]

        def ratio(label: str, precision: str, taken: float = taken) -> float | None:
            return medians[label, precision] / taken if (label, precision) in medians else None

        yield [
            ("model", "{}", entry.label),
            ("d", "{}", width),
            ("products", "{}", entry.precision),
            ("made by", "{}", case.made_by()),
            ("ms an update", "{:.1f}", taken * 1e3),
            ("+-", "{:.0%}", spread(turns[entry.label, entry.precision])),
            ("words/s", "{:,.0f}", case.words / taken),
            ("to fairseq's", "{:.2f}x", ratio(entry.peer or "", entry.precision)),
            ("to its transformer", "{:.2f}x", ratio(TRANSFORMER, entry.precision)),
            ("to fp32", "{:.2f}x", ratio(entry.label, "fp32") if entry.precision != "fp32" else None),
        ]


class Training:
    """A training; each call makes one update with the next of its batches.

    Attributes:
        words: target words of a batch, on average.
    """

    def __init__(self, built: TaskAndModel, tokens: int, shapes: int = 1, precision: str = "fp32") -> None:
        from fairseq.trainer import Trainer

        criterion = built.task.build_criterion(built.cfg.criterion)
        self.trainer = Trainer(built.cfg, built.task, built.model, criterion)
        self.arch, self.precision = built.args.arch, precision
        generator = torch.Generator().manual_seed(1)
        longest = [LONGEST] if shapes == 1 else torch.randint(*LENGTHS, (shapes,), generator=generator).tolist()
        batches = [_batch(built, tokens, length, generator) for length in longest]
        self.words = statistics.fmean(batch["ntokens"] for batch in batches)
        self._coming = itertools.cycle(batches)
        self.trainer.begin_epoch(1)
        for _ in range(WARM_UP if built.cfg.optimization.cuda_graphs else 0):
            self()

    def __call__(self) -> None:
        with products_in(self.precision, self.arch):
            self.trainer.train_step([next(self._coming)])

    def made_by(self) -> str:
        """Return how the updates ran: "graphs", "kernels" (one after the other), or "graphs" with their share."""
        share = getattr(self.trainer, "share_by_graphs", 0.0)
        return {0.0: "kernels", 1.0: "graphs"}.get(share, f"graphs {share:.0%}")


def _recipe(tokens: int, device: torch.device, user_flags: list[str]) -> list[str]:
    # only flags that any optimiser and loss takes, so that --flags may choose another one
    flags = ["--optimizer", "adam", "--lr", "1e-5", "--lr-scheduler", "fixed", "--dropout", "0.1"]
    if not any(flag.partition("=")[0] == "--criterion" for flag in user_flags):
        flags += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    flags += ["--max-tokens", str(tokens), "--share-all-embeddings", "--log-format", "none"]
    return flags + (["--cpu"] if device.type == "cpu" else [])


def _batch(built: TaskAndModel, tokens: int, longest: int, generator: torch.Generator) -> dict[str, Any]:
    """Return a batch of random sentences with 3/4 of ``longest`` to ``longest`` words, padded as fairseq pads them.

    ``tokens`` limits the size of each side, including padding.
    """
    from fairseq.data.language_pair_dataset import collate

    words = built.task.source_dictionary

    def sentence(length: int) -> torch.Tensor:
        ids = torch.randint(words.nspecial, len(words), (length,), generator=generator)
        ids[-1] = words.eos()
        return ids

    shortest = longest * 3 // 4
    lengths = torch.randint(shortest, longest + 1, (max(1, tokens // longest), 2), generator=generator).tolist()
    samples = [
        {"id": number, "source": sentence(source), "target": sentence(target)}
        for number, (source, target) in enumerate(lengths)
    ]
    return collate(samples, pad_idx=words.pad(), eos_idx=words.eos(), left_pad_source=True)
