"""The keys and values that a configuration may have, and refusals of all others. config.py explains the settings."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.schema import require, require_known

# What each section of ours may hold. None: fairseq's flags, which fairseq itself checks.
SECTIONS: dict[str, frozenset[str] | None] = {
    "train": None,
    "batch": frozenset({"tokens", "max-tokens", "cpu-processes"}),
    "average": frozenset({"by", "last"}),
    "generate": None,
    "tune": None,
    "score": frozenset({"metric"}),
    "speed": frozenset({"beam", "batch-size", "subset", "runs", "baseline"}),
}
OWN = [name for name, keys in SECTIONS.items() if keys is not None] + ["tune"]
TOP_LEVEL = ("base", "dataset", "seeds", "precision", *SECTIONS)
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
METRICS = ("bleu", "bleu_compounds", "sacrebleu", "rouge", "perplexity")
SUBSETS = ("valid", "test")

# Flags that the commands set themselves: two homes for one value would part.
RESERVED = {
    "train": frozenset({"data", "save-dir", "user-dir", "seed", "log-format", "log-file", "cpu", "restore-file"}),
    "generate": frozenset(
        {"data", "path", "user-dir", "seed", "results-path", "quiet", "cpu", "log-format", "nbest", "gen-subset"}
    ),
}
RESERVED["tune"] = RESERVED["generate"]
HALF = ("fp16", "bf16")  # fairseq's flags, in each section
_FLAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def check_keys(path: Path, content: Mapping[str, Any]) -> None:
    """Check one file by itself.

    Raises:
        UserError: it holds an unknown key, or something other than a mapping of settings as a section.
    """
    require_known(path, content, TOP_LEVEL)
    for key, value in content.items():
        require(path, key != "base" or isinstance(value, str), key, value, "the path of a YAML file")
        if key not in SECTIONS or value is None:
            continue
        require(path, isinstance(value, Mapping), key, value, "a mapping of settings, or null")
        allowed = SECTIONS[key]
        for setting, given in value.items():
            finite = all(map(_finite, given if isinstance(given, list) else [given]))
            require(path, finite, f"{key}.{setting}", given, "finite numbers alone")
            if allowed is None:
                _check_flag(path, key, setting, given)
        if allowed is not None:
            require_known(path, value, sorted(allowed), f"{key}.")


def _check_flag(path: Path, section: str, name: Any, value: Any) -> None:
    if not isinstance(name, str) or not _FLAG.fullmatch(name):
        raise UserError(
            f"{path}: `{section}.{name}` is not the name of a flag; expected fairseq's name in lower case, "
            "with hyphens and without leading dashes, such as max-tokens"
        )
    if name in RESERVED[section]:
        raise UserError(f"{path}: `{section}.{name}` is set by the scripts themselves; take it out")
    if name in HALF:
        instead = f"`precision: {name}` beside the sections" if section == "train" else "scripts.generate --precision"
        raise UserError(f"{path}: `{section}.{name}` is set by {instead}; take it out")
    items = value if isinstance(value, list) else [value]
    plain = all(item is None or isinstance(item, str | int | float) for item in items)
    listed = isinstance(value, list) and (not value or any(item is None or isinstance(item, bool) for item in value))
    expected = "a number, a text, true, false, null, or a list of these"
    require(path, plain and not listed, f"{section}.{name}", value, expected)


def check_values(path: Path, merged: Mapping[str, Any]) -> None:
    """Check what a chain of files says together.

    Raises:
        UserError: a setting is missing, of the wrong kind, or at odds with another.
    """

    def expect(key: str, value: Any, good: bool, expected: str) -> None:
        require(path, good, key, value, f"{expected} (here or in the file it builds on)")

    dataset, seeds = merged.get("dataset"), merged.get("seeds")
    named = isinstance(dataset, str) and bool(re.fullmatch(r"[\w.-]+", dataset)) and not dataset.startswith(".")
    expect("dataset", dataset, named, "the name of a file in data_prep/datasets, without .yaml")
    expect("seeds", seeds, _several(seeds, 0), "a list of different whole numbers")
    precision = merged.get("precision", "fp32")
    expect("precision", precision, precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")

    train, batch, average = (merged.get(name, {}) for name in ("train", "batch", "average"))
    expect("train.arch", train.get("arch"), isinstance(train.get("arch"), str), "the name of a model architecture")
    limits = [train.get(key) for key in ("max-update", "max-epoch")]
    expect("train.max-update", limits[0], any(_whole(n, 1) for n in limits), "a whole number of updates from 1 on")
    if batch:
        for key in ("tokens", "max-tokens"):
            expect(f"batch.{key}", batch.get(key), _whole(batch.get(key), 1), "a whole number of tokens from 1 on")
        processes = batch.get("cpu-processes", 1)
        expect("batch.cpu-processes", processes, _whole(processes, 1), "a whole number of processes from 1 on")
        for key in ("max-tokens", "update-freq"):
            expect(f"train.{key}", train.get(key), train.get(key) is None, "nothing, since `batch` determines it")
    if average:
        expect("average.by", average.get("by"), average.get("by") in ("update", "epoch"), "update or epoch")
        expect("average.last", average.get("last"), _whole(average.get("last"), 1), "a whole number from 1 on")

    score = merged.get("score", {})
    metric = score.get("metric", "bleu")
    expect("score.metric", metric, metric in METRICS, f"one of {', '.join(METRICS)}")
    _check_tune(expect, merged.get("tune", {}), metric, average)
    for section in ("generate", "tune"):
        for key in ("unnormalized", "stepwise-length-penalty"):
            value = merged.get(section, {}).get(key)
            alone = value is None or value is False or "lenpen" not in merged.get("tune", {})
            expect(f"{section}.{key}", value, alone, "nothing beside `tune.lenpen`, on which it leaves no effect")
    _check_speed(expect, merged.get("speed", {}), metric)


def _check_tune(expect: Any, tune: Mapping[str, Any], metric: str, average: Mapping[str, Any]) -> None:
    for key, values in tune.items():
        expect(f"tune.{key}", values, _several(values), "a list of different values")
        if metric == "perplexity":
            expect("tune", list(tune), key == "last", "`last` alone: the perplexity depends on nothing else")
    if "last" in tune:
        expect("tune.last", tune["last"], _several(tune["last"], 1), "whole numbers from 1 on")
        expect(
            "average", {}, bool(average), "a section with `by` and `last`, since `tune.last` stands for average.last"
        )
        last, candidates = average["last"], tune["last"]
        expect("average.last", last, last in candidates, f"one of `tune.last` {candidates}, which takes its place")


def _check_speed(expect: Any, speed: Mapping[str, Any], metric: str) -> None:
    if not speed:
        return
    expect("score.metric", metric, metric != "perplexity", "bleu or rouge, since `speed` times generation")
    for key in ("beam", "batch-size", "runs"):
        expect(f"speed.{key}", speed.get(key), _whole(speed.get(key), 1), "a whole number from 1 on")
    subset, baseline = speed.get("subset"), speed.get("baseline")
    expect("speed.subset", subset, subset in SUBSETS, f"one of {', '.join(SUBSETS)}")
    expect("speed.baseline", baseline, baseline is None or isinstance(baseline, str), "the path of a configuration")


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _several(values: Any, least: int | None = None) -> bool:
    """Return True if it is a list of values, none of them twice; with ``least``, of whole numbers from it on."""
    if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
        return False
    return least is None or all(_whole(value, least) for value in values)
