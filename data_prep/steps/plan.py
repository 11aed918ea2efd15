"""From the steps a dataset lists to passes over its text, every mistake in them found before work begins."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset, Step
from data_prep.steps import deduplicate, hold_out, raw, units
from data_prep.steps.registry import (
    CLEAN_CORPUS,
    CORPUS,
    DECODE,
    LINE,
    PAIR,
    READERS,
    SQUEEZE,
    STEPS,
    Registered,
    without_parameters,
)
from scripts.common.errors import UserError

CORPUS_STEPS: dict[str, Registered] = {
    "hold_out": Registered(CORPUS, hold_out.hold_out),
    "split_by_hash": Registered(CORPUS, hold_out.split_by_hash),
    "deduplicate": without_parameters(CORPUS, deduplicate.deduplicate),
    "save_raw": without_parameters(CORPUS, raw.save),
    "bpe": Registered(CORPUS, units.learn_bpe, then=units.apply_steps),
    "sentencepiece": Registered(CORPUS, units.learn_sentencepiece, then=units.apply_steps),
}


@dataclass(frozen=True)
class Pass:
    """One pass: line-wise steps fused, or one step of the whole corpus."""

    folder: str
    steps: tuple[Step, ...]
    corpus: bool


def plan(dataset: Dataset, work: Path) -> list[Pass]:
    """The passes, in order.

    Raises:
        UserError: a step or reader is unknown, lacks a parameter, or has one it does not know; file and key are named.
    """
    _check_readers(dataset)
    groups: list[tuple[bool, list[Step]]] = []

    def add(step: Step, *, corpus: bool) -> None:
        if corpus or not groups or groups[-1][0]:
            groups.append((corpus, []))
        groups[-1][1].append(step)

    if any(source.invalid == "drop" for sources in dataset.splits.values() for source in sources):
        add(Step(name=DECODE), corpus=False)
    for place, step in enumerate(dataset.steps):
        known = {**STEPS, **CORPUS_STEPS}
        key = f"{dataset.file}: steps[{place}]"
        if step.name not in known:
            raise UserError(f"{key}: unknown step {step.name}; expected one of {', '.join(sorted(known))}")
        _check_step(key, step, known[step.name], dataset)
        if step.name == CLEAN_CORPUS:  # which changes text, too: Moses leaves one space between tokens, and no |
            add(Step(name=SQUEEZE, splits=step.splits), corpus=False)
        add(step, corpus=step.name in CORPUS_STEPS)
        if (then := known[step.name].then) is not None:
            for apply in then(step, dataset.languages, work):
                add(apply, corpus=False)
    return [
        Pass(f"{place:02}-{steps[0].name}", tuple(steps), corpus) for place, (corpus, steps) in enumerate(groups, 1)
    ]


def _check_readers(dataset: Dataset) -> None:
    for split, sources in dataset.splits.items():
        for place, source in enumerate(sources):
            if source.reader != "plain" and source.reader not in READERS:
                known = ", ".join(["plain", *sorted(READERS)])
                raise UserError(
                    f"{dataset.file}: splits.{split}[{place}].reader: got {source.reader!r}, expected one of {known}"
                )


def _check_step(key: str, step: Step, registered: Registered, dataset: Dataset) -> None:
    parameters = dict(inspect.signature(registered.make).parameters)
    parameters.pop("language", None)  # that of the lines, not of the YAML
    for name, value in step.parameters.items():
        if name not in parameters:
            known = ", ".join(["splits", "languages", *parameters])
            raise UserError(f"{key}: unknown key {step.name}.{name}; expected some of {known}")
        _check_type(f"{key}: {step.name}.{name}", parameters[name].annotation, value)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in step.parameters:
            raise UserError(f"{key}: the key {step.name}.{name} is missing")
    splits = {*dataset.splits, *SPLITS, *(s.parameters.get("into") for s in dataset.steps)}
    for split in step.splits:
        if split not in splits:
            raise UserError(
                f"{key}: {step.name}.splits: got {split!r}, expected some of {', '.join(sorted(filter(None, splits)))}"
            )
    if step.languages and registered.kind != LINE:
        raise UserError(f"{key}: {step.name} works on whole pairs and takes no languages; leave them out")
    if registered.kind == PAIR and dataset.target is None:
        raise UserError(f"{key}: {step.name} compares two languages, and {dataset.name} has one")
    if (by := step.parameters.get("by")) is not None and by not in dataset.languages:
        raise UserError(f"{key}: {step.name}.by: got {by!r}, expected one of {', '.join(dataset.languages)}")
    if step.name == "hold_out" and len(step.splits) != 1:
        raise UserError(f"{key}: hold_out.splits: got {list(step.splits)}, expected the one split it takes lines from")
    try:  # a wrong value, or a package that is missing: now, not after a night of fetching
        for language in step.languages or dataset.languages:
            registered.build(language, step.parameters)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error


def _check_type(key: str, annotation: Any, value: object) -> None:
    if annotation == Sequence[str] and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise UserError(f"{key}: got {value!r}, expected a list of words")
    accepted = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}.get(annotation)
    if accepted is not None and type(value) not in accepted:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
        raise UserError(f"{key}: got {value!r}, expected {names[annotation]}")
