"""A run's configuration: YAML files that state only what differs, merged, checked and turned into fairseq's flags.

A file names the one it builds on with ``base:`` (a path relative to itself; chains are allowed).

  dataset: the name of a file in data_prep/datasets, without .yaml, or the path of a dataset's YAML file, relative to
                     the file that sets it
  precision: fp16    of the training: fp32 (the default), fp16 with fairseq's loss scaling on GPUs, bf16, or auto: on a
                     CPU bf16 where the processor is fast in it, on GPUs fp16
  seeds: [1, 2, 3]   a model is trained with each; the best of them on validation is tested
  train: {...}       fairseq-train's flags without the dashes: true is a bare flag, null and false leave the flag out,
                     so that a file can take back what its base sets; a list is joined with commas
  batch: {tokens: 458752, max-tokens: 3584}   tokens of an update over all devices, and at most how many a device takes
                     at once: update-freq follows from the devices. With cpu-processes: 2, where there is no GPU, two
                     processes if there are two cores: small models train faster so than with two threads
  average: {by: update, last: 10}   the mean of the last checkpoints; without it the best checkpoint is used as it is
  generate: {...}    fairseq-generate's flags; for a language model fairseq-eval-lm's. post-process names the units of
                     words; of a language model it is needed only where the text comes prepared. precision, no flag of
                     fairseq's, is that of the search: fp32 (the default), bf16 or int8 on a CPU, fp16 on a GPU, or auto
  tune: {last: [best, 5, 10], lenpen: [0.6, 1.0]}   candidates for average.last and flags of `generate`, all
                     combinations of which are compared on validation, for each seed by itself; best: the checkpoint
                     with the best validation, by itself
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

from data_prep.common.command import argument_parser
from data_prep.common.errors import UserError
from data_prep.common.schema import check_fields, require
from data_prep.common.strict_yaml import read_yaml
from data_prep.dataset import is_path

PRECISIONS = ("auto", "fp32", "bf16", "fp16")  # of a training
SEARCH_PRECISIONS = (*PRECISIONS, "int8")
METRICS = ("bleu", "bleu_compounds", "sacrebleu", "rouge", "perplexity")
SUBSETS = ("valid", "test")
BEST = "best"
"""In `tune.last` the checkpoint with the best validation, in place of a mean."""
# the types of what each section holds. None: fairseq's flags, which fairseq itself checks
SECTIONS: dict[str, dict[str, type] | None] = {
    "train": None,
    "batch": {"tokens": int, "max-tokens": int, "cpu-processes": int},
    "average": {"by": str, "last": int},
    "generate": None,
    "tune": None,
    "score": {"metric": str},
    "speed": {"beam": int, "batch-size": int, "subset": str, "runs": int, "baseline": str},
}
_OPTIONAL = {"cpu-processes", "baseline"}
_KEYS = {"dataset": str, "seeds": Any, "precision": str, **dict.fromkeys(SECTIONS, dict[str, Any])}

_SET_HERE = {
    *("data", "user-dir", "seed", "log-format", "cpu", "save-dir", "log-file", "restore-file", "path", "results-path"),
    *("quiet", "nbest", "gen-subset", "fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16"),
    *("source-lang", "target-lang"),  # the dataset's
    # with which fairseq reads a part of a subset, or gives the references
    *("num-shards", "shard-id", "prefix-size", "score-reference"),
    # with which a training leaves nothing to go on from, or forgets it
    *("no-save", "no-last-checkpoints", "no-save-optimizer-state"),
    *("reset-optimizer", "reset-lr-scheduler", "reset-meters", "reset-dataloader"),
}
"""Flags that no section may hold: two homes for one value would part, or a result would be another."""
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
    def dataset_name(self) -> str:
        """The dataset's name: of its folder in work/, in records and in the signatures of scores."""
        return Path(self.dataset).stem if is_path(self.dataset) else self.dataset

    @property
    def arguments(self) -> list[str]:
        """The arguments by which a command reads this configuration (``config_parser``)."""
        return [str(self.path), *(["--dataset", self.other_dataset] if self.other_dataset else [])]

    @property
    def metric(self) -> str:
        """One of ``METRICS``, by which the models are compared."""
        return str(self.score.get("metric", "bleu"))

    @property
    def averaged(self) -> list[int | str]:
        """The numbers of checkpoints that the model may be the mean of; ``BEST`` for the best checkpoint."""
        if not self.average:
            return [BEST]
        return list(self.tune.get("last", [self.average["last"]]))

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
    add("--dataset", metavar="NAME", help="replaces the configuration's `dataset`: a name, or a YAML file")
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
        UserError: a file cannot be read, builds on itself, or holds an unknown or ill-typed key.
    """
    chain: dict[Path, dict[str, Any]] = {}
    current: Path | None = path
    while current is not None:
        content = read_yaml(current)
        if any(current.samefile(each) for each in chain):
            raise UserError(f"{path}: its chain of `base:` comes back to {current}; a file cannot build on itself")
        chain[current] = content
        dataset = str(content.get("dataset", ""))
        if is_path(dataset) and (current.parent / dataset).is_file():
            content["dataset"] = str((current.parent / dataset).resolve())
        base = content.pop("base", None)
        require(current, isinstance(base, str | None), "base", base, "the path of a YAML file")
        current = current.parent / base if base is not None else None
    merged = functools.reduce(merge, reversed(chain.values()))
    for name in SECTIONS:
        section = merged[name] = {} if merged.get(name) is None else merged[name]
        # of fairseq's flags null stays: the run record shows what is taken back
        if isinstance(section, dict) and name not in ("train", "generate"):
            merged[name] = {key: value for key, value in section.items() if value is not None}
    _check(" on top of ".join(map(str, chain)), merged)
    published = merged.get("precision", "fp32")
    if other_dataset and is_path(other_dataset):
        other_dataset = str(Path(other_dataset).absolute())
    overrides = {"dataset": other_dataset, "precision": precision}
    merged |= {key: value for key, value in overrides.items() if value is not None}
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


def _check(file: str, config: dict[str, Any]) -> None:
    """Refuse settings that are missing, unknown, of the wrong kind, or at odds with another."""
    expect = functools.partial(require, file)
    check_fields(file, config, _KEYS, ("dataset", "seeds"))
    dataset = config["dataset"]
    is_name = re.fullmatch(r"(?!\.)[\w.-]+", dataset) and not is_path(dataset)
    expected = "the name of a file in data_prep/datasets, without .yaml, or the path of a YAML file"
    expect(is_name or Path(dataset).is_absolute(), "dataset", dataset, expected)
    expect(_several(config["seeds"], 0), "seeds", config["seeds"], "a list of different whole numbers")
    for section, types in SECTIONS.items():
        settings = config[section]
        if types is None:
            _check_flags(file, section, settings)
        elif settings:
            check_fields(file, settings, types, [name for name in types if name not in _OPTIONAL], f"{section}.")
            for name, value in settings.items():
                expect(types[name] is str or value > 0, f"{section}.{name}", value, "a whole number from 1 on")
    train, batch, average, generate, tune, score, speed = (config[section] for section in SECTIONS)
    searches = ("fp32",) if score.get("metric") == "perplexity" else SEARCH_PRECISIONS
    for key, value, known in (
        ("precision", config.get("precision"), PRECISIONS),
        ("generate.precision", generate.get("precision"), searches),
        ("score.metric", score.get("metric"), METRICS),
        ("average.by", average.get("by"), ("update", "epoch")),
        ("speed.subset", speed.get("subset"), SUBSETS),
    ):
        expect(value is None or value in known, key, value, f"one of {', '.join(known)}")
    expect(isinstance(train.get("arch"), str), "train.arch", train.get("arch"), "the name of a model architecture")
    limits = [train.get(name) for name in ("max-update", "max-epoch")]
    expect(any(map(_whole, limits)), "train.max-update", limits[0], "a whole number of updates from 1 on")
    for name in ("max-tokens", "update-freq") if batch else ():
        expect(train.get(name) is None, f"train.{name}", train.get(name), "nothing, since `batch` determines it")
    for name, values in tune.items():
        expect(_several(values), f"tune.{name}", values, "a list of different values")
    if "last" in tune:
        numbers = [value for value in tune["last"] if value != BEST]
        is_right = _several(tune["last"]) and _several(numbers, 1)
        expect(is_right, "tune.last", tune["last"], f"whole numbers from 1 on, and `{BEST}` if it is to be one of them")
        which = f"one of `tune.last` {tune['last']}, which takes its place"
        expect(average.get("last") in tune["last"], "average.last", average.get("last"), which)


def _check_flags(file: str, section: str, settings: Mapping[str, Any]) -> None:
    for name, given in settings.items():
        key = f"{section}.{name}"
        if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
            raise UserError(
                f"{file}: `{key}` is not the name of a flag; expected fairseq's name in lower case, with hyphens "
                "and without leading dashes, such as max-tokens"
            )
        # without a word fairseq leaves out the last sentences of a subset that do not fill a batch of such a size
        if name in _SET_HERE or (section != "train" and name == "required-batch-size-multiple"):
            instead = " and set `precision` beside the sections" if name.endswith(("fp16", "bf16")) else ""
            raise UserError(f"{file}: `{key}` cannot be set in a configuration; take it out{instead}")
        if name in OTHER_NAMES:
            raise UserError(f"{file}: `{key}` is fairseq's second name; write {section}.{OTHER_NAMES[name]}")
        items = given if isinstance(given, list) else [given]
        plain = items and all(
            type(item) in (str, int) or (type(item) is float and math.isfinite(item)) for item in items
        )
        wanted = "a finite number, a text, true, false, null, or a list of these"
        require(file, given is None or isinstance(given, bool) or plain, key, given, wanted)


def _whole(value: Any, least: int = 1) -> bool:
    return type(value) is int and value >= least  # to Python True is an int


def _several(values: Any, least: int | None = None) -> bool:
    """Return True if it is a list of values, none of them twice; with ``least``, of whole numbers from it on."""
    if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
        return False
    return least is None or all(_whole(value, least) for value in values)
