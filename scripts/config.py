"""A run's configuration: YAML files are merged, checked and turned into fairseq's flags.

A file states only what differs from the file that its key ``base:`` names (a path relative to the file itself). That
file may have a base, too.

  dataset: the name of a file in data_prep/datasets, without .yaml, or the path of a dataset's YAML file, relative to
                     the file that sets it
  precision: fp16    the precision of the training: fp32 (the default); fp16, on GPUs, with fairseq's loss scaling;
                     bf16; or auto: fp16 on GPUs, and on a CPU bf16 if the processor is fast in it, else fp32
  seeds: [1, 2, 3]   one model is trained for each seed; the best one on validation is tested
  train: {...}       fairseq-train's flags without the dashes: true is a bare flag, null and false leave the flag out,
                     so that a file can undo a setting of its base; a list is joined with commas
  batch: {tokens: 458752, max-tokens: 3584}   the tokens of an update over all devices, and the largest number of tokens
                     that a device takes at once; update-freq follows from the number of devices. With cpu-processes: 2,
                     a machine without GPUs but with two cores trains in two processes: small models train faster in
                     two processes than in two threads
  average: {by: update, last: 10}   the mean of the last checkpoints; without it the best checkpoint is used as it is
  generate: {...}    fairseq-generate's flags; for a language model fairseq-eval-lm's. post-process names the kind of
                     subwords; a language model needs it only if its dataset has no steps. precision is not a flag of
                     fairseq, but the precision of the search: fp32 (the default), bf16 or int8 on a CPU, fp16 on a GPU,
                     or auto
  tune: {last: [best, 5, 10], lenpen: [0.6, 1.0]}   candidates for average.last and for flags of `generate`; all
                     combinations are compared on validation, for each seed separately. best is the checkpoint with the
                     best validation score, without averaging
  score: {metric: bleu}   the score on validation by which settings and seeds are chosen: bleu (tokenised),
                     bleu_compounds (the same with compounds split), sacrebleu, rouge or perplexity
  speed: {beam: 4, batch-size: 256, subset: valid, runs: 3, baseline: transformer.yaml}   settings for measuring the
                     speed of generation; the speed of the baseline, another configuration (a path relative to this
                     one), is measured in the same run

A section that is null is empty, whatever its base has. The commands' option ``--dataset`` replaces ``dataset``.
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
"""The value in `tune.last` for the checkpoint with the best validation score, in place of a mean."""
# the keys of each section with their types; None: fairseq's flags, which fairseq itself checks
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
    # fairseq would read only a part of a subset, or be given the references
    *("num-shards", "shard-id", "prefix-size", "score-reference"),
    # a training could not resume, or would ignore its checkpoints
    *("no-save", "no-last-checkpoints", "no-save-optimizer-state"),
    *("reset-optimizer", "reset-lr-scheduler", "reset-meters", "reset-dataloader"),
}
"""Flags that no section may hold: they are set elsewhere, or would change the meaning of the results."""
OTHER_NAMES = {
    "remove-bpe": "post-process",
    "max-sentences": "batch-size",
    "max-sentences-valid": "batch-size-valid",
    "combine-val": "combine-valid-subsets",
    "nval": "max-valid-steps",
    "save-async": "write-checkpoints-asynchronously",
}
"""fairseq's second names of its flags, with the first names. Only the first names are accepted. A test compares both
with fairseq's parsers."""


def combinations(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every choice of one value for each key; without keys, one empty choice."""
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
    # the precision that "auto" stands for on a GPU: the files', which is fp32 if they set none; fp16 if they set "auto"
    published_precision: str = "fp16"
    other_dataset: str | None = None

    @property
    def dataset_name(self) -> str:
        """The dataset's name: of its folder in work/, in records and in the signatures of scores."""
        return Path(self.dataset).stem if is_path(self.dataset) else self.dataset

    @property
    def arguments(self) -> list[str]:
        """Arguments with which a command reads this configuration, see ``config_parser``."""
        return [str(self.path), *(["--dataset", self.other_dataset] if self.other_dataset else [])]

    @property
    def metric(self) -> str:
        """The metric that models are compared by, one of ``METRICS``."""
        return str(self.score.get("metric", "bleu"))

    @property
    def averaged(self) -> list[int | str]:
        """Numbers of checkpoints that may be averaged into the model; ``BEST`` is the best checkpoint alone."""
        if not self.average:
            return [BEST]
        return list(self.tune.get("last", [self.average["last"]]))

    @property
    def cpu_processes(self) -> int:
        """Number of training processes on a machine without GPUs, if it has as many cores."""
        return int(self.batch.get("cpu-processes", 1))

    def merged(self) -> dict[str, Any]:
        """Return all settings as plain data, for the run record."""
        return {key: getattr(self, key) for key in ("dataset", "seeds", "precision", *SECTIONS)}

    def training(self, seed: int) -> dict[str, Any]:
        """Return the settings that decide the result of a training, apart from its data and its devices."""
        settings = {"train": self.train, "tokens": self.batch.get("tokens"), "seed": seed}
        # the default is left out, so that trainings from before the key existed stay valid
        return settings if self.precision == "fp32" else settings | {"precision": self.precision}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; any other value of ``over`` replaces the value of ``base``."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def config_parser(doc: str | None, *, data: bool = False, out: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with a command's docstring as its help and the arguments that ``given_config`` reads.

    Args:
        doc: the command's docstring.
        data: add --data, the folder of binarised data.
        out: add --out, the folder to write, with this help.
    """
    parser = argument_parser(doc)
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    add("--dataset", metavar="NAME", help="replaces the configuration's `dataset`: a name, or a YAML file")
    if data:
        add("--data", type=Path, required=True, metavar="BINARISED", help="the folder that data_prep.binarise wrote")
    if out is not None:
        add("--out", type=Path, required=True, metavar="DIR", help=out)
    return parser


def given_config(arguments: argparse.Namespace, precision: str | None = None) -> Config:
    """Return the configuration of a command's arguments; see ``load_config``."""
    return load_config(arguments.config, arguments.dataset, precision=precision)


def load_config(path: Path, other_dataset: str | None = None, *, precision: str | None = None) -> Config:
    """Read a configuration and the chain of files that it builds on.

    Args:
        path: the configuration's YAML file.
        other_dataset: replaces the files' dataset; None keeps it.
        precision: replaces the files' precision; None keeps it.

    Raises:
        UserError: a file cannot be read, builds on itself, or holds an unknown or ill-typed key.
    """
    chain: dict[Path, dict[str, Any]] = {}
    current: Path | None = path
    while current is not None:
        content = read_yaml(current)
        if any(current.samefile(file) for file in chain):
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
        # null stays among fairseq's flags: the run record shows which settings of the base are undone
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
    """Return the command-line arguments of a ``train`` or ``generate`` section, in the section's order."""
    arguments = []
    for name, value in section.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            arguments.append(f"--{name}={text}")  # one argument, so that a value may begin with a dash
    return arguments


def _check(file: str, config: dict[str, Any]) -> None:
    """Refuse settings that are missing, unknown, of the wrong type, or contradict another setting."""
    expect = functools.partial(require, file)
    check_fields(file, config, _KEYS, ("dataset", "seeds"))
    dataset = config["dataset"]
    is_name = re.fullmatch(r"(?!\.)[\w.-]+", dataset) and not is_path(dataset)
    expected = "the name of a file in data_prep/datasets, without .yaml, or the path of a YAML file"
    expect(is_name or Path(dataset).is_absolute(), "dataset", dataset, expected)
    expect(_are_different(config["seeds"], 0), "seeds", config["seeds"], "a list of different whole numbers")
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
    for key, value, choices in (
        ("precision", config.get("precision"), PRECISIONS),
        ("generate.precision", generate.get("precision"), searches),
        ("score.metric", score.get("metric"), METRICS),
        ("average.by", average.get("by"), ("update", "epoch")),
        ("speed.subset", speed.get("subset"), SUBSETS),
    ):
        expect(value is None or value in choices, key, value, f"one of {', '.join(choices)}")
    expect(isinstance(train.get("arch"), str), "train.arch", train.get("arch"), "the name of a model architecture")
    limits = [train.get(name) for name in ("max-update", "max-epoch")]
    expect(any(map(_is_whole, limits)), "train.max-update", limits[0], "a whole number of updates from 1 on")
    for name in ("max-tokens", "update-freq") if batch else ():
        expect(train.get(name) is None, f"train.{name}", train.get(name), "nothing, since `batch` determines it")
    for name, values in tune.items():
        expect(_are_different(values), f"tune.{name}", values, "a list of different values")
    if "last" in tune:
        numbers = [value for value in tune["last"] if value != BEST]
        is_right = _are_different(tune["last"]) and _are_different(numbers, 1)
        expect(is_right, "tune.last", tune["last"], f"whole numbers from 1 on, and `{BEST}` if it is to be one of them")
        candidates = f"one of `tune.last` {tune['last']}, which takes its place"
        expect(average.get("last") in tune["last"], "average.last", average.get("last"), candidates)


def _check_flags(file: str, section: str, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        key = f"{section}.{name}"
        if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
            raise UserError(
                f"{file}: `{key}` is not the name of a flag; expected fairseq's name in lower case, with hyphens "
                "and without leading dashes, such as max-tokens"
            )
        # with a multiple, fairseq silently drops the last sentences of a subset that do not fill a batch
        if name in _SET_HERE or (section != "train" and name == "required-batch-size-multiple"):
            instead = " and set `precision` beside the sections" if name.endswith(("fp16", "bf16")) else ""
            raise UserError(f"{file}: `{key}` cannot be set in a configuration; take it out{instead}")
        if name in OTHER_NAMES:
            raise UserError(f"{file}: `{key}` is fairseq's second name; write {section}.{OTHER_NAMES[name]}")
        items = value if isinstance(value, list) else [value]
        plain = items and all(
            type(item) in (str, int) or (type(item) is float and math.isfinite(item)) for item in items
        )
        expected = "a finite number, a text, true, false, null, or a list of these"
        require(file, value is None or isinstance(value, bool) or plain, key, value, expected)


def _is_whole(value: Any, least: int = 1) -> bool:
    return type(value) is int and value >= least  # to Python True is an int


def _are_different(values: Any, least: int | None = None) -> bool:
    """Return True for a list of values without repetitions; with ``least``, of whole numbers that are not smaller."""
    if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
        return False
    return least is None or all(_is_whole(value, least) for value in values)
