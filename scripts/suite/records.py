"""The records of a page, kept beside it in small files of text: they outlive the machine that the runs were on.

  <page>/<dataset>/<run>.json  the run's configuration; by seed what it was made with, its scores, costs and losses, the
                               checksums of hypotheses and model, and in place of the hypotheses the numbers of each
                               line that sacreBLEU makes the first score of
  <page>/<dataset>.json        the identity of the binarised text; how test and training text overlap; the speeds

<page> is the page's name without .md. A run that has its record with the same configuration is not run again, wherever
the page goes. Seeds are added to it as they get their scores.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import read_json
from scripts.fairseq_io.trainlog import read_log_file
from scripts.pipeline.config import Config
from scripts.pipeline.stamp import digest_data, read_stamp
from scripts.reproduce.layout import seed_root
from scripts.scoring.selection import numbers
from scripts.tables.measured import read_record

SHOWN = {"training": ("diverged", "updates", "seconds", "tokens_per_second", "peak_mb"), "generation": ("peak_mb",)}
"""The facts of a training and of a generation that a page shows."""


def read_kept(path: Path, config: Config) -> dict[str, Any]:
    """The record of a run beside the page; empty if there is none with this configuration."""
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    return found if found.get("config") == config.merged() else {}


def read_run(folder: Path, config: Config) -> dict[str, Any]:
    """The same from a run's own folder, of the seeds whose training has ended, without what is made of their lines."""
    path = folder / "record.json"
    record = read_record(path) if path.exists() else {}
    if record.get("config") != config.merged():
        return {}
    trained = sorted((int(seed) for seed, facts in record["seeds"].items() if facts["training"]))
    seeds = {str(seed): _of_seed(record, seed, seed_root(folder, seed)) for seed in trained}
    return {"config": record["config"], "parameters": record["parameters"], "seeds": seeds}


def _of_seed(record: Mapping[str, Any], seed: int, root: Path) -> dict[str, Any]:
    facts, log = record["seeds"][str(seed)], root / "checkpoints" / "train.log"
    losses = read_log_file(log) if log.exists() else None
    stamp = read_stamp(root / "scores") if facts["test"] else None
    return {
        **{key: record.get(key) for key in ("machine", "versions", "precision")},
        "git": record["stages"].get(f"train:{seed}", {}).get("git"),
        **{part: _some(facts.get(part) or {}, keys) for part, keys in SHOWN.items()},
        "tuned": facts.get("tuned"),
        "test": numbers(facts["test"] or {}),
        "scored": stamp and stamp.id,
        "train_loss": _text_keys(losses.train_loss if losses else {}),
        "valid_loss": _text_keys(losses.valid_loss if losses else {}),
    }


def _some(facts: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: facts[key] for key in keys if facts.get(key) is not None}


def _text_keys(losses: Mapping[int, float]) -> dict[str, float]:
    return {str(update): loss for update, loss in losses.items()}


def check_text(kept: Path, binarised: Path) -> None:
    """Refuse to go on with a dataset's records on another text.

    Raises:
        UserError: the binarised text is not that of the records in ``kept``, <page>/<dataset>.json.
    """
    if kept.exists() and binarised.is_dir() and read_json(kept)["data"] != digest_data(binarised):
        raise UserError(
            f"{binarised} is not the text that the records beside {kept} are of (Debian may have new descriptions): "
            "their scores do not compare. Give the old text by --raw, or another --out for a page of its own"
        )
