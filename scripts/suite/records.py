"""The records of a page, kept beside it in small files of text: they outlive the machine that the runs were on.

  <page>/<dataset>/<run>.json  the run's configuration; by seed what it was made with, its scores, costs and losses, the
                               checksums of hypotheses and model, and in place of the hypotheses the numbers of each
                               line that sacreBLEU makes the first score of
  <page>/<dataset>.json        how test and training text overlap; the speeds

<page> is the page's name without .md. A seed that has its record with the same configuration is not run again, wherever
the page goes. What a run's folder says of it later changes nothing: to run it again, remove the record.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from scripts.common.files import read_json
from scripts.fairseq_io.trainlog import read_log_file
from scripts.pipeline.config import Config
from scripts.pipeline.stamp import digest_data
from scripts.reproduce.layout import is_tuned, seed_root
from scripts.scoring.selection import numbers
from scripts.tables.measured import read_record

SHOWN = {"training": ("diverged", "updates", "seconds", "tokens_per_second", "peak_mb"), "generation": ("peak_mb",)}
"""The facts of a training and of a generation that a page shows."""


def read_kept(path: Path, config: Config) -> dict[str, Any]:
    """The record of a run beside the page; empty if there is none with this configuration, its list of seeds aside."""
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    return found if found and _same(found["config"], config) else {}


def _same(known: Mapping[str, Any], config: Config) -> bool:
    """Return True if two configurations do the same for a seed."""
    judged = is_tuned(replace(config, seeds=known["seeds"])) == is_tuned(config)  # a seed alone needs no validation
    return judged and {**known, "seeds": None} == {**config.merged(), "seeds": None}


def text_of(binarised: Path) -> str | None:
    """The identity of a dataset's binarised text; None if it is not there."""
    return _digest(binarised, binarised.stat().st_mtime_ns) if binarised.is_dir() else None


@lru_cache
def _digest(binarised: Path, changed: int) -> str:
    return digest_data(binarised)


def read_run(folder: Path, config: Config) -> dict[str, Any]:
    """The same from a run's own folder, without the lines, of the seeds that were trained on the text that is there."""
    path = folder / "record.json"
    record = read_record(path) if path.exists() else {}
    if not record or not _same(record["config"], config):
        return {}
    trained = sorted(int(seed) for seed, facts in record["seeds"].items() if facts["training"])
    found = {seed: _of_seed(record, seed, seed_root(folder, seed)) for seed in trained}
    text = text_of(folder.parent / "binarised")
    seeds = {str(seed): facts for seed, facts in found.items() if facts["text"] == text is not None}
    return {"config": config.merged(), "parameters": record["parameters"], "seeds": seeds}


def _of_seed(record: Mapping[str, Any], seed: int, root: Path) -> dict[str, Any]:
    facts = record["seeds"][str(seed)]
    log, started = (root / "checkpoints" / name for name in ("train.log", "started.json"))
    losses = read_log_file(log) if log.exists() else None
    return {
        **{key: record.get(key) for key in ("machine", "versions", "precision")},
        "git": record["stages"].get(f"train:{seed}", {}).get("git"),
        "text": read_json(started)["data"] if started.exists() else None,
        **{part: _some(facts.get(part) or {}, keys) for part, keys in SHOWN.items()},
        "tuned": facts.get("tuned"),
        "test": numbers(facts["test"] or {}),
        "train_loss": _finite(losses.train_loss if losses else {}),
        "valid_loss": _finite(losses.valid_loss if losses else {}),
    }


def _some(facts: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: facts[key] for key in keys if facts.get(key) is not None}


def _finite(losses: Mapping[int, float]) -> dict[str, float]:
    return {str(update): loss for update, loss in losses.items() if math.isfinite(loss)}
