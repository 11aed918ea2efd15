"""Measure how fast the models of a suite translate sentences of growing length, all in one process, in turns.

The test set's lines are put into groups by their tokens; from each the same lines go through every model in one batch,
beam and length penalty being the same for all, the models one after another in each round. All hypotheses of a group
are as long as its references are on average, so that no model is faster for writing less. The first round is not
counted.

The weights are those after one update: trained ones take the same time for the same tokens, and may be on another
machine. So all models that have scores are timed together. The result goes into the dataset's record beside the page.
It is not measured again until there is another model, or the settings are others.
"""

import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from data_prep.dataset import load_dataset
from scripts.common.files import read_lines, write_json
from scripts.common.provenance import available_cores, commit, machine, versions
from scripts.fairseq_io.translator import Translator
from scripts.pipeline.pipeline import fingerprint
from scripts.speed import untrained_system
from scripts.suite.plan import Suite
from scripts.suite.results import Dataset

LENGTHS = (1, 17, 33, 65)
"""The least tokens of each group of lines."""
LINES = 32  # of each group, in a batch
ROUNDS = 5  # beside the first
SETTINGS: dict[str, Any] = {"beam": 4, "lenpen": 1.0}
HOW = {"settings": SETTINGS, "rounds": ROUNDS, "lines": LINES, "lengths": list(LENGTHS)}


def is_due(dataset: Dataset) -> bool:
    """Return True if a dataset's models translate, and some have no speed, or one by other settings."""
    if load_dataset(dataset.name).target is None or not dataset.models:
        return False
    known = dataset.speeds
    if not known or known["seconds"].keys() != dataset.models.keys():
        return True
    return not HOW.items() <= known["made_from"]["conditions"].items()


def conditions() -> dict[str, Any]:
    """Return what a measurement depends on, beside the models."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or available_cores())
    return {
        **HOW,
        "weights": "after one update",
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }


def groups(pairs: Sequence[tuple[str, str]]) -> dict[int, list[tuple[str, str]]]:
    """Up to ``LINES`` lines of each group with references, spread over the test set, by the group's least tokens."""
    found = {}
    for least, below in pairwise([*LENGTHS, sys.maxsize]):
        some = [pair for pair in pairs if least <= len(pair[0].split()) < below]
        if some:
            count = min(LINES, len(some))
            found[least] = [some[len(some) * number // count] for number in range(count)]
    return found


def measure(
    models: dict[str, Path], dictionaries: Path, pairs: Sequence[tuple[str, str]], languages: tuple[str, str]
) -> dict[str, dict[str, Any]]:
    """Seconds of every round, by model and group; how many lines a group has, and the tokens of their hypotheses."""
    batches = {str(least): pairs for least, pairs in groups(pairs).items()}
    tokens = {least: round(fmean(len(line.split()) for _, line in batch)) for least, batch in batches.items()}
    loaded = {}
    for name, model in models.items():
        for least, length in tokens.items():
            settings = SETTINGS | {"max-len-a": 0, "max-len-b": length, "min-len": length}
            loaded[name, least] = Translator(model, dictionaries, languages, settings)
    seconds: dict[str, dict[str, list[float]]] = {name: {least: [] for least in batches} for name in models}
    for number in range(ROUNDS + 1):
        for least, batch in batches.items():
            for name in models:
                start = time.perf_counter()
                loaded[name, least].translate([line for line, _ in batch])
                if number:
                    seconds[name][least].append(time.perf_counter() - start)
        print(f"speed: round {number} of {ROUNDS}", flush=True)
    return {"lines": {least: len(batch) for least, batch in batches.items()}, "tokens": tokens, "seconds": seconds}


def record(suite: Suite, dataset: Dataset) -> None:
    """Measure the models of a dataset that have scores, and write the result into its record."""
    root, about = suite.work / dataset.name, load_dataset(dataset.name)
    languages = about.source, str(about.target)
    models = {}
    for name, model in dataset.models.items():
        print(f"speed: {name}, one update", flush=True)
        models[name] = untrained_system(model.config, root / "binarised", root / "untrained" / name).model
    pairs = zip(*(read_lines(root / "prepared" / f"test.{language}") for language in languages), strict=True)
    found = measure(models, root / "binarised", list(pairs), languages)
    of_models = {name: fingerprint(model.config.train) for name, model in dataset.models.items()}
    found["made_from"] = {"conditions": conditions(), **of_models}
    write_json(suite.facts(dataset.name), dataset.facts | {"speed": found})
