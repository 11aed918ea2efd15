"""A run's configuration: YAML files that state only what differs, merged, checked and turned into fairseq's flags.

A file names the one it builds on with ``base:`` (a path relative to itself; chains are allowed).

  dataset: a file of data_prep/datasets, without .yaml
  precision: fp16    of the training: fp32 (the default), fp16 with fairseq's loss scaling on GPUs, bf16, or auto: on a
                     CPU bf16 where the processor is fast in it, on GPUs fp16
  seeds: [1, 2, 3]   a model is trained with each; the best of them on validation is tested
  train: {...}       fairseq-train's flags without the dashes: true is a bare flag, null and false leave the flag out,
                     so that a file can take back what its base sets; a list is joined with commas
  batch: {tokens: 458752, max-tokens: 3584}   tokens of an update over all devices, and at most how many a device takes
                     at once: update-freq follows from the devices; in place of train.max-tokens and train.update-freq.
                     With cpu-processes: 2, where there is no GPU, two processes if there are two cores: small models
                     train faster so than with two threads
  average: {by: update, last: 10}   without it the best checkpoint is used as it is
  generate: {...}    fairseq-generate's flags; for a language model fairseq-eval-lm's. post-process names the units of
                     words; of a language model it is needed only where the text comes prepared
  tune: {last: [5, 10], lenpen: [0.6, 1.0]}   candidates for average.last and flags of `generate`, all combinations of
                     which are compared on validation, for each seed by itself
  score: {metric: bleu}   by which settings and seeds are chosen on validation: bleu (tokenised), bleu_compounds (the
                     same with compounds split), sacrebleu, rouge or perplexity
  speed: {beam: 4, batch-size: 256, subset: valid, runs: 3, baseline: transformer.yaml}   the speed of generation beside
                     that of another configuration (a path relative to this one) in the same run

A whole section given as null is taken back. ``--dataset`` of the commands takes the place of ``dataset``.
"""

import argparse
import functools
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser
from scripts.common.errors import UserError
from scripts.common.schema import require, require_known
from scripts.common.strict_yaml import read_yaml

# what each section may hold. None: fairseq's flags, which fairseq itself checks
SECTIONS: dict[str, tuple[str, ...] | None] = {
    "train": None,
    "batch": ("tokens", "max-tokens", "cpu-processes"),
    "average": ("by", "last"),
    "generate": None,
    "tune": None,
    "score": ("metric",),
    "speed": ("beam", "batch-size", "subset", "runs", "baseline"),
}
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
METRICS = ("bleu", "bleu_compounds", "sacrebleu", "rouge", "perplexity")
SUBSETS = ("valid", "test")
WHOLE = ("batch.tokens", "batch.max-tokens", "average.last", "speed.beam", "speed.batch-size", "speed.runs")
"""Whole numbers from 1 on, each needed where its section is given."""

# flags that the commands set themselves, and what decides them: two homes for one value would part
_SET_BY = {
    **dict.fromkeys(("data", "user-dir", "seed", "log-format", "cpu"), "the scripts themselves"),
    **dict.fromkeys(("save-dir", "log-file", "restore-file"), "the scripts themselves"),
    **dict.fromkeys(("path", "results-path", "quiet", "nbest", "gen-subset"), "the scripts themselves"),
    **dict.fromkeys(("fp16", "bf16"), "`precision` beside the sections, and scripts.generate --precision"),
}
OTHER_NAMES = {
    "remove-bpe": "post-process",
    "max-sentences": "batch-size",
    "max-sentences-valid": "batch-size-valid",
    "combine-val": "combine-valid-subsets",
    "nval": "max-valid-steps",
    "save-async": "write-checkpoints-asynchronously",
}
"""fairseq's second names of its flags, and the first ones, which alone are taken. A test compares them with fairseq."""


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
        """One of ``METRICS``, by which the models are compared."""
        return str(self.score.get("metric", "bleu"))

    @property
    def cpu_processes(self) -> int:
        """Number of processes by which a CPU with as many cores trains."""
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
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    add("--dataset", metavar="NAME", help="a file of data_prep/datasets in place of the configuration's `dataset`")
    if data:
        add("--data", type=Path, required=True, metavar="BINARISED", help="what data_prep.binarise wrote")
    if out is not None:
        add("--out", type=Path, required=True, metavar="DIR", help=out)
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
    chain: dict[Path, dict[str, Any]] = {}
    current: Path | None = path
    while current is not None:
        if current.resolve() in chain:
            raise UserError(f"{path}: its chain of `base:` comes back to {current}; a file cannot build on itself")
        content = read_yaml(current)
        _check_file(current, content)
        chain[current.resolve()] = content
        base = content.pop("base", None)
        current = current.parent / base if base is not None else None
    return build_config(path, functools.reduce(merge, reversed(chain.values())), other_dataset, precision=precision)


def build_config(
    path: Path, merged: dict[str, Any], other_dataset: str | None = None, *, precision: str | None = None
) -> Config:
    """The configuration that a file with this content alone is; see ``load_config``. The file need not be there."""
    published = merged.get("precision", "fp32")
    if precision is not None:
        merged["precision"] = precision
    for section in SECTIONS.keys() & merged.keys():
        whole = section in (
            "train",
            "generate",
        )  # null stays as fairseq's flag: the run record shows what is taken back
        merged[section] = {key: value for key, value in (merged[section] or {}).items() if whole or value is not None}
    _check_merged(path, merged)
    if other_dataset:  # or the path of one, which gives no folder a name
        merged["dataset"] = other_dataset
    published = "fp16" if published == "auto" else published
    return Config(path=path, name=path.stem, other_dataset=other_dataset, published_precision=published, **merged)


def flags(section: Mapping[str, Any]) -> list[str]:
    """fairseq's command-line arguments for a ``train`` or ``generate`` section, in the section's order."""
    arguments = []
    for name, value in section.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            arguments.append(f"--{name}={text}")  # one argument, so that a value may begin with a dash
    return arguments


def _check_file(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse unknown keys, and values of the wrong form, of one file by itself."""
    require_known(path, content, ("base", "dataset", "seeds", "precision", *SECTIONS))
    require(path, isinstance(content.get("base", ""), str), "base", content.get("base"), "the path of a YAML file")
    for section, allowed in SECTIONS.items():
        settings = content.get(section)
        require(path, isinstance(settings, Mapping | None), section, settings, "a mapping of settings, or null")
        if allowed is not None:
            require_known(path, settings or {}, allowed, f"{section}.")
        for name, given in (settings or {}).items():
            key, items = f"{section}.{name}", given if isinstance(given, list) else [given]
            finite = not any(isinstance(item, float) and not math.isfinite(item) for item in items)
            require(path, finite, key, given, "finite numbers alone")
            if allowed is not None:
                continue
            if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
                raise UserError(
                    f"{path}: `{key}` is not the name of a flag; expected fairseq's name in lower case, with hyphens "
                    "and without leading dashes, such as max-tokens"
                )
            if name in _SET_BY:
                raise UserError(f"{path}: `{key}` is set by {_SET_BY[name]}; take it out")
            if name in OTHER_NAMES:
                raise UserError(f"{path}: `{key}` is fairseq's second name; write {section}.{OTHER_NAMES[name]}")
            plain = given is None or isinstance(given, bool)
            plain = plain or (items != [] and all(type(item) in (str, int, float) for item in items))
            require(path, plain, key, given, "a number, a text, true, false, null, or a list of these")


def _check_merged(path: Path, merged: Mapping[str, Any]) -> None:
    """Refuse settings that are missing, of the wrong kind, or at odds with another, of a chain of files together."""

    def get(key: str, default: Any = None) -> Any:
        section, _, name = key.partition(".")
        return merged.get(section, {}).get(name, default) if name else merged.get(section, default)

    def expect(key: str, holds: object, expected: str, default: Any = None) -> None:
        require(path, holds, key, get(key, default), f"{expected} (here or in the file it builds on)")

    def one_of(key: str, known: tuple[str, ...], default: str | None = None) -> None:
        expect(key, get(key, default) in known, f"one of {', '.join(known)}", default)

    name, tune, perplexity = get("dataset"), get("tune", {}), get("score.metric") == "perplexity"
    named = isinstance(name, str) and re.fullmatch(r"(?!\.)[\w.-]+", name)
    expect("dataset", named, "the name of a file in data_prep/datasets, without .yaml")
    expect("seeds", _several(get("seeds"), 0), "a list of different whole numbers")
    one_of("precision", PRECISIONS, "fp32")
    one_of("score.metric", METRICS, "bleu")
    expect("train.arch", isinstance(get("train.arch"), str), "the name of a model architecture")
    limited = _whole(get("train.max-update")) or _whole(get("train.max-epoch"))
    expect("train.max-update", limited, "a whole number of updates from 1 on")
    for key in WHOLE:
        expect(key, not get(key.partition(".")[0]) or _whole(get(key)), "a whole number from 1 on")
    if get("batch"):
        expect("batch.cpu-processes", _whole(get("batch.cpu-processes", 1)), "a whole number of processes from 1 on")
        for key in ("train.max-tokens", "train.update-freq"):
            expect(key, get(key) is None, "nothing, since `batch` determines it")
    if get("average"):
        one_of("average.by", ("update", "epoch"))
    for key, values in tune.items():
        expect(f"tune.{key}", _several(values), "a list of different values")
    alone = not perplexity or {*tune} <= {"last"}
    expect("tune", alone, "`last` alone: a perplexity depends on nothing else", {})
    if "last" in tune:
        expect("tune.last", _several(tune["last"], 1), "whole numbers from 1 on")
        expect(
            "average", get("average"), "a section with `by` and `last`, since `tune.last` stands for average.last", {}
        )
        which = f"one of `tune.last` {tune['last']}, which takes its place"
        expect("average.last", get("average.last") in tune["last"], which)
    if "lenpen" in tune:
        for section, flag in itertools.product(("generate", "tune"), ("unnormalized", "stepwise-length-penalty")):
            value = get(f"{section}.{flag}")
            unused = value is None or value is False
            expect(f"{section}.{flag}", unused, "nothing beside `tune.lenpen`, on which it leaves no effect")
    if get("speed"):
        expect("score.metric", not perplexity, "bleu or rouge, since `speed` times generation")
        one_of("speed.subset", SUBSETS)
        expect("speed.baseline", isinstance(get("speed.baseline"), str | None), "the path of a configuration")


def _whole(value: Any, least: float = 1) -> bool:
    return type(value) is int and value >= least  # to Python True is an int


def _several(values: Any, least: int | None = None) -> bool:
    """Return True if it is a list of values, none of them twice; with ``least``, of whole numbers from it on."""
    if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
        return False
    return least is None or all(_whole(value, least) for value in values)
