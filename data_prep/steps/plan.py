"""The steps that a dataset's YAML may name, their checks, and their arrangement in passes over the text."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.common.errors import UserError
from data_prep.common.schema import check_fields, require
from data_prep.dataset import SPLITS, Dataset, Step
from data_prep.steps import learn
from data_prep.steps.filter import deduplicate, hold_out, save_raw, split_by_hash
from data_prep.text import bpe, characters, chinese, clean, moses, punctuation, sentencepiece, tokenise

LINE, PAIR, WHOLE = "line", "pair", "whole"


class Registered(NamedTuple):
    """A step by its name in a YAML."""

    kind: str
    """The kind of its function: ``line``, from str to str; ``pair``, from a pair of str to the reason for dropping it
    or None; ``whole``, a ``corpus.WholeStep``."""
    make: Callable[..., Any]
    """Returns the function for the parameters in the YAML; raises a UserError for a wrong value."""

    def build(self, language: str | None, parameters: dict[str, Any]) -> Callable[..., Any]:
        """Return the step's function. ``language`` is that of the lines, for a step on lines."""
        if "language" in inspect.signature(self.make).parameters:
            return self.make(language=language, **parameters)
        return self.make(**parameters)


STEPS: dict[str, Registered] = {
    "normalise_space": Registered(LINE, lambda: clean.normalise_space),
    "normalise_punctuation": Registered(LINE, punctuation.punctuation_normaliser),
    "remove_non_printing": Registered(LINE, characters.non_printing_remover),
    "strip_control": Registered(LINE, lambda: chinese.strip_control),
    "straighten_apostrophes": Registered(LINE, lambda: clean.straighten_apostrophes),
    "tokenise": Registered(LINE, tokenise.tokeniser),
    "segment_chinese": Registered(LINE, chinese.segmenter),
    "lowercase": Registered(LINE, lambda: characters.lowercase),
    "truncate": Registered(LINE, clean.truncater),
    learn.APPLY_BPE: Registered(LINE, bpe.encoder),
    "clean": Registered(PAIR, clean.pair_filter),
    "clean_corpus": Registered(PAIR, moses.moses_filter),
    "clean_scripts": Registered(PAIR, chinese.script_filter),
    "hold_out": Registered(WHOLE, hold_out),
    "split_by_hash": Registered(WHOLE, split_by_hash),
    "deduplicate": Registered(WHOLE, lambda: deduplicate),
    "save_raw": Registered(WHOLE, lambda: save_raw),
    "bpe": Registered(WHOLE, learn.learn_bpe),
    "sentencepiece": Registered(WHOLE, learn.learn_sentencepiece),
}
_NAMED = sorted(STEPS)
STEPS |= {  # parts of other steps, which a YAML cannot name
    "squeeze": Registered(LINE, lambda: moses.clean_line),
    learn.APPLY_SENTENCEPIECE: Registered(LINE, sentencepiece.encoder),
}


class Pass(NamedTuple):
    """One pass over the text: some line-wise steps, or one step on the whole corpus."""

    folder: str
    steps: tuple[Step, ...]

    @property
    def whole(self) -> bool:
        """True for a step on the whole corpus."""
        return STEPS[self.steps[0].name].kind == WHOLE


def plan(dataset: Dataset, work: Path) -> list[Pass]:
    """Arrange a dataset's steps in passes.

    Args:
        dataset: the dataset.
        work: the folder where steps write files that other steps read.

    Raises:
        UserError: a step has a wrong name, parameter, split or language.
    """
    steps: list[Step] = []
    for index, step in enumerate(dataset.steps):
        _check_step(f"{dataset.file}: steps[{index}]", step, dataset)
        if step.name == "clean_corpus":  # Moses's cleaner also changes lines: one space between tokens, and no |
            steps.append(Step(name="squeeze", splits=step.splits))
        steps.append(step)
        if step.name in learn.LEARNT:
            steps += learn.apply_steps(step, dataset.languages, work)
    groups: list[list[Step]] = []
    for step in steps:
        if not groups or WHOLE in (STEPS[step.name].kind, STEPS[groups[-1][0].name].kind):
            groups.append([])
        groups[-1].append(step)
    return [Pass(f"{number:02}-{group[0].name}", tuple(group)) for number, group in enumerate(groups, 1)]


def _check_step(key: str, step: Step, dataset: Dataset) -> None:
    if step.name not in _NAMED:
        raise UserError(f"{key}: unknown step {step.name}; expected one of {', '.join(_NAMED)}")
    registered = STEPS[step.name]
    # the engine supplies ``language``, not the YAML
    accepted = {k: p for k, p in inspect.signature(registered.make).parameters.items() if k != "language"}
    needed = [name for name, parameter in accepted.items() if parameter.default is inspect.Parameter.empty]
    types = {name: parameter.annotation for name, parameter in accepted.items()}
    check_fields(key, step.parameters, types, needed, f"{step.name}.")
    new_splits = {entry.parameters["into"] for entry in dataset.steps if "into" in entry.parameters}
    splits = {*dataset.splits, *SPLITS, *new_splits}
    for split in step.splits:
        require(key, split in splits, f"{step.name}.splits", split, f"some of {', '.join(sorted(splits))}")
    if step.languages and registered.kind != LINE:
        raise UserError(f"{key}: {step.name} works on whole pairs and takes no languages; leave them out")
    if registered.kind == PAIR and dataset.target is None:
        raise UserError(f"{key}: {step.name} compares two languages, and {dataset.name} has one")
    by = step.parameters.get("by", dataset.source)
    require(key, by in dataset.languages, f"{step.name}.by", by, f"one of {', '.join(dataset.languages)}")
    is_complete = step.name != "hold_out" or len(step.splits) == 1
    require(key, is_complete, "hold_out.splits", list(step.splits), "the one split to take lines from")
    try:  # raises errors about values and missing packages now instead of after a night of downloads
        for language in step.languages or dataset.languages:
            registered.build(language, step.parameters)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
