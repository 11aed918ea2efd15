"""A run's configuration: YAML files that state only what differs, merged, checked and turned into fairseq's flags.

A file names the one it builds on with ``base:`` (a path relative to itself; chains are allowed). Sections ``train``
and ``generate`` are fairseq's own flags without the dashes: ``true`` is a bare flag, ``null`` and ``false`` leave the
flag out (so a file can take back what its base sets), a list is joined with commas.
"""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scripts.common.errors import UserError

# What each section of ours may hold. None: fairseq's flags, which fairseq itself checks.
SECTIONS: dict[str, frozenset[str] | None] = {
    "train": None,
    "average": frozenset({"by", "last"}),
    "generate": None,
    "score": frozenset({"metric", "compounds"}),
    "paper": frozenset({"table", "row", "bleu", "rouge1", "rouge2", "rougeL", "params"}),
}
TOP_LEVEL = ("base", "dataset", "seed", *SECTIONS)
METRICS = ("bleu", "rouge")

# Flags that the commands set themselves: two homes for one value would part.
RESERVED = {
    "train": frozenset({"data", "save-dir", "user-dir", "seed", "log-format", "log-file", "cpu", "restore-file"}),
    "generate": frozenset({"data", "path", "user-dir", "seed", "results-path", "quiet", "cpu", "log-format", "nbest"}),
}
_FLAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Config:
    """A merged and checked configuration. ``name`` is the model's, from the file's name."""

    path: Path
    name: str
    dataset: str
    seed: int
    train: dict[str, Any] = field(default_factory=dict)
    average: dict[str, Any] = field(default_factory=dict)
    generate: dict[str, Any] = field(default_factory=dict)
    score: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)

    def merged(self) -> dict[str, Any]:
        """All settings as plain data, for the run record."""
        return {key: getattr(self, key) for key in ("dataset", "seed", *SECTIONS)}


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: YAML's silent "last one wins" hides a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here a second time", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in one YAML file.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8, not YAML, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of an existing YAML file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); give a YAML file in UTF-8") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, expected a mapping of sections such as `train:`")
    return content


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``base``: mappings are merged key by key, anything else in ``over`` replaces."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def load_config(path: Path) -> Config:
    """Read ``path`` and the chain of files it builds on.

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
        _check_keys(current, content)
        base = content.pop("base", None)
        chain.append((current, content))
        current = current.parent / base if base is not None else None
    merged: dict[str, Any] = {}
    for _, content in reversed(chain):
        merged = merge(merged, content)
    _check_values(path, merged)
    return Config(path=path, name=path.stem, **merged)


def _check_keys(path: Path, content: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if key not in TOP_LEVEL:
            raise UserError(f"{path}: unknown key `{key}`; expected one of {', '.join(TOP_LEVEL)}")
        if key == "base" and not isinstance(value, str):
            raise UserError(f"{path}: `base` is {value!r}, expected the path of a YAML file")
        if key not in SECTIONS:
            continue
        if not isinstance(value, Mapping):
            raise UserError(f"{path}: `{key}` is {value!r}, expected a mapping of settings")
        allowed = SECTIONS[key]
        for setting, given in value.items():
            if allowed is not None and setting not in allowed:
                raise UserError(f"{path}: unknown key `{key}.{setting}`; expected one of {', '.join(sorted(allowed))}")
            if allowed is None:
                _check_flag(path, key, setting, given)


def _check_flag(path: Path, section: str, name: Any, value: Any) -> None:
    if not isinstance(name, str) or not _FLAG.fullmatch(name):
        raise UserError(
            f"{path}: `{section}.{name}` is not the name of a flag; expected fairseq's name in lower case, "
            "with hyphens and without leading dashes, such as max-tokens"
        )
    if name in RESERVED[section]:
        raise UserError(f"{path}: `{section}.{name}` is set by scripts/{section}.py itself; take it out")
    items = value if isinstance(value, list) else [value]
    if not all(item is None or isinstance(item, str | int | float) for item in items) or (
        isinstance(value, list) and (not value or any(item is None or isinstance(item, bool) for item in value))
    ):
        raise UserError(
            f"{path}: `{section}.{name}` is {value!r}, expected a number, a text, true, false, null, or a list of these"
        )


def _check_values(path: Path, merged: Mapping[str, Any]) -> None:
    def expect(key: str, value: Any, good: bool, expected: str) -> None:
        if not good:
            raise UserError(f"{path}: `{key}` is {value!r}, expected {expected} (here or in the file it builds on)")

    def whole(value: Any, least: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    dataset, seed = merged.get("dataset"), merged.get("seed")
    named = isinstance(dataset, str) and bool(re.fullmatch(r"[\w.-]+", dataset)) and not dataset.startswith(".")
    expect("dataset", dataset, named, "the name of a file in data_prep/datasets, without .yaml")
    expect("seed", seed, whole(seed, 0), "a whole number from 0 on")
    train, average = merged.get("train", {}), merged.get("average", {})
    expect("train.arch", train.get("arch"), isinstance(train.get("arch"), str), "the name of a model architecture")
    limits = [train.get(key) for key in ("max-update", "max-epoch")]
    expect("train.max-update", limits[0], any(whole(n, 1) for n in limits), "a whole number of updates from 1 on")
    if average:
        expect("average.by", average.get("by"), average.get("by") in ("update", "epoch"), "update or epoch")
        expect("average.last", average.get("last"), whole(average.get("last"), 1), "a whole number from 1 on")
    metric = merged.get("score", {}).get("metric", "bleu")
    expect("score.metric", metric, metric in METRICS, f"one of {', '.join(METRICS)}")


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
