"""The run record: one JSON file with everything that a figure in a table rests on."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import read_json
from scripts.common.provenance import git_state, machine, versions
from scripts.pipeline.config import Config
from scripts.pipeline.stamp import digest_data, fingerprint
from scripts.scoring.selection import numbers, summarise

MADE_WITH = ("versions", "git", "machine")
"""The keys of a record that are of the moment when something last ran."""
_NEEDED = {"model", "dataset", "config", "parameters", "seeds", "summary"}


def read_record(path: Path) -> dict[str, Any]:
    """A run record."""
    record = read_json(path)
    if not isinstance(record, dict) or not record.keys() >= _NEEDED:
        raise UserError(f"{path} is not a run record; expected work/<dataset>/<model>/record.json of scripts.reproduce")
    return record


def lookup(record: Mapping[str, Any] | None, path: str) -> Any:
    """Return what stands at a dotted path; None where there is nothing."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def diverged_after(record: Mapping[str, Any] | None) -> int | None:
    """After how many updates the training of a seed diverged; None if none did."""
    updates = [lookup(seed, "training.diverged") for seed in (lookup(record, "seeds") or {}).values()]
    return next((update for update in updates if update is not None), None)


def seed_facts(root: Path, done: Collection[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the stages of a seed that are ``done`` left behind in its folder; what has not been done is null.

    A training that diverged counts if it had these ``settings``, and the dataset's binarised text as it is now.
    """

    def facts(stage: str, name: str) -> Any:
        path = root / name
        return read_json(path) if stage in done and path.exists() else None

    training, diverged = facts("train", "checkpoints/train.json"), root / "checkpoints" / "diverged.json"
    if training is None and diverged.exists():
        found, identity = read_json(diverged), settings | {"data": digest_data(root.parents[1] / "binarised")}
        training = {"diverged": found["update"]} if found.get("of") == fingerprint(identity) else None
    tuning = facts("tune", "tuned/tune.json")
    return {
        "training": training,
        "tuned": tuning and tuning["chosen"],
        "valid": facts("score", "scores/valid/scores.json"),
        "generation": facts("generate", "hypotheses/generation.json"),
        "test": facts("score", "scores/test/scores.json"),
    }


def build_record(
    config: Config, seeds: dict[int, dict[str, Any]], speed: dict[str, Any] | None, stages: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The record of a run so far.

    ``seeds`` has each one's ``seed_facts``, ``speed`` what scripts.speed measured, ``stages`` of each completed stage
    when, how long and from which commit it was run.
    """
    known = [facts["training"] for facts in seeds.values() if facts["training"]]

    def of_any(key: str) -> Any:
        return next((training[key] for training in known if training.get(key) is not None), None)

    return {
        "model": config.name,
        "dataset": config.dataset,
        "config": config.merged(),
        "parameters": of_any("parameters"),
        "backend": of_any("backend"),
        "precision": of_any("precision"),
        "precision_reason": of_any("precision_reason"),
        "seeds": {str(seed): {**facts, "valid": numbers(facts["valid"] or {})} for seed, facts in seeds.items()},
        **summarise(config.metric, seeds),
        "speed": speed,
        "stages": stages,
        "versions": versions(),
        "git": git_state(),
        "machine": machine(),
    }
