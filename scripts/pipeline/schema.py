"""The keys and values that a configuration may have, and refusals of all others. config.py explains the settings."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.schema import require, require_known

# What each section of ours may hold. None: fairseq's flags, which fairseq itself checks.
SECTIONS: dict[str, tuple[str, ...] | None] = {
    "train": None,
    "batch": ("tokens", "max-tokens", "cpu-processes"),
    "average": ("by", "last"),
    "generate": None,
    "tune": None,
    "score": ("metric",),
    "speed": ("beam", "batch-size", "subset", "runs", "baseline"),
}
OWN = [name for name, keys in SECTIONS.items() if keys is not None] + ["tune"]
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
METRICS = ("bleu", "bleu_compounds", "sacrebleu", "rouge", "perplexity")
SUBSETS = ("valid", "test")

# Flags that the commands set themselves, and by what: two homes for one value would part.
_BOTH = ("data", "user-dir", "seed", "log-format", "cpu")
_TRAIN = dict.fromkeys((*_BOTH, "save-dir", "log-file", "restore-file"), "the scripts themselves")
_TRAIN |= {name: f"`precision: {name}` beside the sections" for name in ("fp16", "bf16")}
_GENERATE = dict.fromkeys((*_BOTH, "path", "results-path", "quiet", "nbest", "gen-subset"), "the scripts themselves")
_GENERATE |= dict.fromkeys(("fp16", "bf16"), "scripts.generate --precision")
_SET_BY = {"train": _TRAIN, "generate": _GENERATE, "tune": _GENERATE}
_WHOLE = {"batch": ("tokens", "max-tokens"), "average": ("last",), "speed": ("beam", "batch-size", "runs")}


def check_keys(path: Path, content: Mapping[str, Any]) -> None:
    """Check one file by itself.

    Raises:
        UserError: it holds an unknown key, or something other than a mapping of settings as a section.
    """
    require_known(path, content, ("base", "dataset", "seeds", "precision", *SECTIONS))
    require(path, isinstance(content.get("base", ""), str), "base", content.get("base"), "the path of a YAML file")
    for section, allowed in SECTIONS.items():
        settings = content.get(section)
        require(path, isinstance(settings, Mapping | None), section, settings, "a mapping of settings, or null")
        if allowed is not None:
            require_known(path, settings or {}, allowed, f"{section}.")
        for name, given in (settings or {}).items():
            items = given if isinstance(given, list) else [given]
            finite = not any(isinstance(item, float) and not math.isfinite(item) for item in items)
            require(path, finite, f"{section}.{name}", given, "finite numbers alone")
            if allowed is None:
                _check_flag(path, section, name, given)


def _check_flag(path: Path, section: str, name: Any, value: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UserError(
            f"{path}: `{section}.{name}` is not the name of a flag; expected fairseq's name in lower case, "
            "with hyphens and without leading dashes, such as max-tokens"
        )
    if name in _SET_BY[section]:
        raise UserError(f"{path}: `{section}.{name}` is set by {_SET_BY[section][name]}; take it out")
    plain = isinstance(value, str | int | float | None)
    listed = (
        isinstance(value, list)
        and value
        and all(isinstance(item, str | float) or _whole(item, -math.inf) for item in value)
    )
    expected = "a number, a text, true, false, null, or a list of these"
    require(path, plain or listed, f"{section}.{name}", value, expected)


def check_values(path: Path, merged: Mapping[str, Any]) -> None:
    """Check what a chain of files says together.

    Raises:
        UserError: a setting is missing, of the wrong kind, or at odds with another.
    """

    def expect(key: str, holds: Callable[[Any], object], expected: str, default: Any = None) -> None:
        section, _, name = key.partition(".")
        value = merged.get(section, {}).get(name, default) if name else merged.get(section, default)
        require(path, holds(value), key, value, f"{expected} (here or in the file it builds on)")

    def one_of(key: str, known: Sequence[str], default: str | None = None) -> None:
        expect(key, lambda value: value in known, f"one of {', '.join(known)}", default)

    train, tune = merged.get("train", {}), merged.get("tune", {})
    expect("dataset", _is_name, "the name of a file in data_prep/datasets, without .yaml")
    expect("seeds", lambda seeds: _several(seeds, 0), "a list of different whole numbers")
    one_of("precision", PRECISIONS, "fp32")
    one_of("score.metric", METRICS, "bleu")
    expect("train.arch", lambda arch: isinstance(arch, str), "the name of a model architecture")
    limited = any(_whole(train.get(key)) for key in ("max-update", "max-epoch"))
    expect("train.max-update", lambda _: limited, "a whole number of updates from 1 on")
    for section, keys in _WHOLE.items():
        for key in keys if merged.get(section) else ():
            expect(f"{section}.{key}", _whole, "a whole number from 1 on")
    if merged.get("batch"):
        expect("batch.cpu-processes", _whole, "a whole number of processes from 1 on", 1)
        for key in ("max-tokens", "update-freq"):
            expect(f"train.{key}", lambda value: value is None, "nothing, since `batch` determines it")
    if merged.get("average"):
        one_of("average.by", ("update", "epoch"))

    perplexity = merged.get("score", {}).get("metric") == "perplexity"
    for key in tune:
        expect(f"tune.{key}", _several, "a list of different values")
    if perplexity:
        expect("tune", lambda tune: {*tune} <= {"last"}, "`last` alone: a perplexity depends on nothing else", {})
    if "last" in tune:
        expect("tune.last", lambda last: _several(last, 1), "whole numbers from 1 on")
        expect("average", bool, "a section with `by` and `last`, since `tune.last` stands for average.last", {})
        which = f"one of `tune.last` {tune['last']}, which takes its place"
        expect("average.last", lambda last: last in tune["last"], which)
    for section in ("generate", "tune") if "lenpen" in tune else ():
        for key in ("unnormalized", "stepwise-length-penalty"):
            nothing = "nothing beside `tune.lenpen`, on which it leaves no effect"
            expect(f"{section}.{key}", lambda value: value is None or value is False, nothing)
    if merged.get("speed"):
        expect("score.metric", lambda _: not perplexity, "bleu or rouge, since `speed` times generation")
        one_of("speed.subset", SUBSETS)
        expect("speed.baseline", lambda value: isinstance(value, str | None), "the path of a configuration")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"(?!\.)[\w.-]+", value) is not None


def _whole(value: Any, least: float = 1) -> bool:
    return type(value) is int and value >= least  # to Python True is an int


def _several(values: Any, least: int | None = None) -> bool:
    """Return True if it is a list of values, none of them twice; with ``least``, of whole numbers from it on."""
    if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
        return False
    return least is None or all(_whole(value, least) for value in values)
