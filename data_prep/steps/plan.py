"""From the steps a dataset lists to passes over its text, every mistake in them found before work begins."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import SPLITS, Dataset, Step
from data_prep.steps import deduplicate, hold_out, raw, registry, units
from data_prep.steps.registry import CORPUS, STEPS, Registered, without_parameters
from scripts.common.errors import UserError
from scripts.common.schema import check_fields, require

CORPUS_STEPS: dict[str, Registered] = {
    "hold_out": Registered(CORPUS, hold_out.hold_out),
    "split_by_hash": Registered(CORPUS, hold_out.split_by_hash),
    "deduplicate": without_parameters(CORPUS, deduplicate.deduplicate),
    "save_raw": without_parameters(CORPUS, raw.save),
    "bpe": Registered(CORPUS, units.learn_bpe, then=units.apply_steps),
    "sentencepiece": Registered(CORPUS, units.learn_sentencepiece, then=units.apply_steps),
}
_ON_TRAIN = ("split_by_hash", "bpe", "sentencepiece")  # what they split, or learn from


@dataclass(frozen=True)
class Pass:
    """One pass: line-wise steps fused, or one step of the whole corpus."""

    folder: str
    steps: tuple[Step, ...]
    corpus: bool


def plan(dataset: Dataset, work: Path) -> list[Pass]:
    """The passes, in order."""
    _check_readers(dataset)
    groups: list[tuple[bool, list[Step]]] = []

    def add(step: Step, *, corpus: bool) -> None:
        if corpus or not groups or groups[-1][0]:
            groups.append((corpus, []))
        groups[-1][1].append(step)

    if any(source.invalid == "drop" for sources in dataset.splits.values() for source in sources):
        add(Step(name=registry.DECODE), corpus=False)
    for place, step in enumerate(dataset.steps):
        known = {**STEPS, **CORPUS_STEPS}
        key = f"{dataset.file}: steps[{place}]"
        if step.name not in known:
            raise UserError(f"{key}: unknown step {step.name}; expected one of {', '.join(sorted(known))}")
        _check_step(key, step, known[step.name], dataset)
        if step.name == registry.CLEAN_CORPUS:  # it changes text, too: one space between tokens, and no |
            add(Step(name=registry.SQUEEZE, splits=step.splits), corpus=False)
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
            known = ["plain", *sorted(registry.READERS)]
            key = f"splits.{split}[{place}].reader"
            require(dataset.file, source.reader in known, key, source.reader, f"one of {', '.join(known)}")


def _check_step(key: str, step: Step, registered: Registered, dataset: Dataset) -> None:
    # a language is that of the lines, not of the YAML
    takes = {k: p for k, p in inspect.signature(registered.make).parameters.items() if k != "language"}
    needed = [name for name, parameter in takes.items() if parameter.default is inspect.Parameter.empty]
    hints = {"splits": Any, "languages": Any, **{name: parameter.annotation for name, parameter in takes.items()}}
    check_fields(key, step.parameters, hints, needed, f"{step.name}.")
    made = {s.parameters["into"] for s in dataset.steps if "into" in s.parameters}
    if step.name in _ON_TRAIN and "train" not in {*(dataset.splits or SPLITS), *made}:
        raise UserError(f"{key}: {step.name} needs a split train; give one under splits, or leave the step out")
    splits = {*dataset.splits, *SPLITS, *made}
    for split in step.splits:
        expected = f"some of {', '.join(sorted(splits))}"
        require(key, split in splits, f"{step.name}.splits", split, expected)
    if step.languages and registered.kind != registry.LINE:
        raise UserError(f"{key}: {step.name} works on whole pairs and takes no languages; leave them out")
    if registered.kind == registry.PAIR and dataset.target is None:
        raise UserError(f"{key}: {step.name} compares two languages, and {dataset.name} has one")
    by, one = step.parameters.get("by"), step.name != "hold_out" or len(step.splits) == 1
    there = by is None or by in dataset.languages
    require(key, there, f"{step.name}.by", by, f"one of {', '.join(dataset.languages)}")
    require(key, one, "hold_out.splits", list(step.splits), "the one split it takes lines from")
    try:  # a wrong value, or a package that is missing: now, not after a night of fetching
        for language in step.languages or dataset.languages:
            registered.build(language, step.parameters)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
