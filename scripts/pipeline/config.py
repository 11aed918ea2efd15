"""A run's configuration: YAML files that state only what differs, merged, checked and turned into fairseq's flags.

A file names the one it builds on with ``base:`` (a path relative to itself; chains are allowed).

  dataset: a file of data_prep/datasets, without .yaml
  precision: fp16    of the training: fp32 (the default), fp16 with fairseq's loss scaling on GPUs, bf16, or auto: on a
                     CPU bf16 where the processor has the units and a measurement says that it is faster, on GPUs fp16
  seeds: [1, 2, 3]   a model is trained with each; the best of them on validation is tested
  train: {...}       fairseq-train's flags without the dashes: true is a bare flag, null and false leave the flag out,
                     so that a file can take back what its base sets; a list is joined with commas
  batch: {tokens: 458752, max-tokens: 3584}   tokens of an update over all devices, and at most how many a device takes
                     at once: update-freq follows from the devices; in place of train.max-tokens and train.update-freq.
                     With cpu-processes: 2, where there is no GPU, two processes if there are two cores: small models
                     train faster so than with two threads
  average: {by: update, last: 10}   without it the best checkpoint is used as it is
  generate: {...}    fairseq-generate's flags; for a language model fairseq-eval-lm's
  tune: {last: [5, 10], lenpen: [0.6, 1.0]}   candidates for average.last and flags of `generate`, all combinations of
                     which are compared on validation, for each seed by itself
  score: {metric: bleu}   by which settings and seeds are chosen on validation: bleu (tokenised), bleu_compounds (the
                     same with compounds split), sacrebleu, rouge or perplexity
  speed: {beam: 4, batch-size: 256, subset: valid, runs: 3, baseline: transformer.yaml}   the speed of generation beside
                     that of another configuration (a path relative to this one) in the same run

A whole section given as null is taken back. ``--dataset`` of the commands takes the place of ``dataset``.
"""

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser
from scripts.common.errors import UserError
from scripts.common.strict_yaml import read_yaml
from scripts.pipeline.schema import OWN, SECTIONS, check_keys, check_values


def combinations(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every choice of one value for each key; one empty choice where there are no keys."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Config:
    """A merged and checked configuration. ``name`` is the model's, from the file's name."""

    path: Path
    name: str
    dataset: str
    seeds: list[int]
    train: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    average: dict[str, Any] = field(default_factory=dict)
    generate: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=dict)
    score: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    published_precision: str = "fp16"  # what auto is on a GPU: the files' own where they name one
    other_dataset: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments by which a command reads this configuration (``config_parser``)."""
        return [str(self.path), *(["--dataset", self.other_dataset] if self.other_dataset else [])]

    @property
    def metric(self) -> str:
        """Return what the models are compared by: bleu, bleu_compounds, sacrebleu, rouge or perplexity."""
        return str(self.score.get("metric", "bleu"))

    @property
    def cpu_processes(self) -> int:
        """Return by how many processes a CPU with as many cores trains."""
        return int(self.batch.get("cpu-processes", 1))

    def merged(self) -> dict[str, Any]:
        """All settings as plain data, for the run record."""
        return {key: getattr(self, key) for key in ("dataset", "seeds", "precision", *SECTIONS)}

    def training(self, seed: int) -> dict[str, Any]:
        """Return what decides the result of a training, beside its data and where it runs."""
        settings = {"train": self.train, "tokens": self.batch.get("tokens"), "seed": seed}
        # only where it is not the default: trainings from before there was the key stay what they are
        return settings if self.precision == "fp32" else settings | {"precision": self.precision}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``base``: mappings are merged key by key, anything else in ``over`` replaces."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def config_parser(doc: str | None, *, data: bool = False, out: str | None = None) -> argparse.ArgumentParser:
    """A parser that shows a command's docstring and takes the arguments that ``given_config`` reads.

    ``data``: it takes the binarised data, too; ``out``: and a folder to write, for this.
    """
    parser = argument_parser(doc)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument(
        "--dataset", metavar="NAME", help="a file of data_prep/datasets in place of the configuration's `dataset`"
    )
    if data:
        parser.add_argument(
            "--data", type=Path, required=True, metavar="BINARISED", help="what data_prep.binarise wrote"
        )
    if out is not None:
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=out)
    return parser


def given_config(arguments: argparse.Namespace, precision: str | None = None) -> Config:
    """The configuration that a command was given; see ``load_config``."""
    return load_config(arguments.config, arguments.dataset, precision=precision)


def load_config(path: Path, other_dataset: str | None = None, *, precision: str | None = None) -> Config:
    """Read ``path`` and the chain of files it builds on; a dataset and a precision that are given replace theirs.

    Raises:
        UserError: a file cannot be read, builds on itself, or holds an unknown or ill-typed key; the message names
        both.
    """
    chain: list[tuple[Path, dict[str, Any]]] = []
    current: Path | None = path
    while current is not None:
        if any(current.resolve() == seen.resolve() for seen, _ in chain):
            raise UserError(f"{path}: its chain of `base:` comes back to {current}; a file cannot build on itself")
        content = read_yaml(current)
        check_keys(current, content)
        base = content.pop("base", None)
        chain.append((current, content))
        current = current.parent / base if base is not None else None
    merged: dict[str, Any] = {}
    for _, content in reversed(chain):
        merged = merge(merged, content)
    return build_config(path, merged, other_dataset, precision=precision)


def build_config(
    path: Path, merged: dict[str, Any], other_dataset: str | None = None, *, precision: str | None = None
) -> Config:
    """The configuration that a file with this content alone is; see ``load_config``. The file need not be there."""
    published = merged.get("precision", "fp32")
    if precision is not None:
        merged["precision"] = precision
    for section in SECTIONS.keys() & merged.keys():
        given = merged[section] or {}
        # in fairseq's sections null stays: the run record shows what was taken back
        merged[section] = {key: value for key, value in given.items() if value is not None or section not in OWN}
    check_values(path, merged)
    if other_dataset:  # or the path of one, which gives no folder a name
        merged["dataset"] = other_dataset
    published = "fp16" if published == "auto" else published
    return Config(path=path, name=path.stem, other_dataset=other_dataset, published_precision=published, **merged)


def flags(section: Mapping[str, Any]) -> list[str]:
    """fairseq's command-line arguments for a ``train`` or ``generate`` section, in the section's order."""
    arguments = []
    for name, value in section.items():
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(f"--{name}")
        else:
            text = ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
            arguments.append(f"--{name}={text}")  # one argument, so that a value may begin with a dash
    return arguments
