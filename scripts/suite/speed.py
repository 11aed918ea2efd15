"""Measure how fast the models of a suite translate sentences of growing length, all in one process, in turns.

The test set's lines are put into groups by their tokens; from each the same lines go through every model in one batch,
beam and length penalty being the same for all, the models one after another in each round. All hypotheses of a group
are as long as its references are on average, so that no model is faster for writing less. The first round is not
counted. Of a model's seeds the first that has its scores is timed. The result stands in DIR/<dataset>/speed.json, and
is kept while the models, the plugin, the versions and the machine are the same.
"""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from data_prep.dataset import load_dataset
from scripts.common import CHECKOUT
from scripts.common.command import argument_parser, run_command
from scripts.common.files import digest, read_json, read_lines, write_json
from scripts.common.provenance import available_cores, machine, versions
from scripts.fairseq_io.trained import find_trained
from scripts.fairseq_io.translator import Translator
from scripts.pipeline.stamp import read_stamp
from scripts.reproduce.layout import seed_root
from scripts.suite.plan import Job, read_suite, run_jobs

NAME = "speed.json"
LENGTHS = (1, 17, 33, 65)
"""The least tokens of each group of lines."""
LINES = 32  # of each group, in a batch
ROUNDS = 5  # beside the first
SETTINGS: dict[str, Any] = {"beam": 4, "lenpen": 1.0}
SOURCES = (".py", ".cpp", ".h", ".inl", ".cuh")


def timed_seeds(jobs: Iterable[Job]) -> dict[str, tuple[Path, str]]:
    """By run the folder of the first scored seed whose model is on this machine, and the identity of its scores."""
    found: dict[str, tuple[Path, str]] = {}
    for job in jobs:
        for seed in job.scored:
            root = seed_root(job.folder, seed)
            stamp = read_stamp(root / "scores")
            if stamp and stamp.id == job.seeds[seed]["scored"] and job.config.name not in found:
                found[job.config.name] = root, stamp.id
    return found


def conditions() -> dict[str, Any]:
    """Return what a measurement depends on, beside the models."""
    plugin = digest(sorted(path for path in (CHECKOUT / "lightconv_plugin").rglob("*") if path.suffix in SOURCES))
    how = {"settings": SETTINGS, "rounds": ROUNDS, "lines": LINES, "lengths": list(LENGTHS)}
    threads = int(os.environ.get("OMP_NUM_THREADS") or available_cores())
    return {**how, "threads": threads, "machine": machine(), "versions": versions(), "plugin": plugin}


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
    models: dict[str, Path], pairs: Sequence[tuple[str, str]], languages: tuple[str, str]
) -> dict[str, dict[str, Any]]:
    """Seconds of every round, by model and group; how many lines a group has, and the tokens of their hypotheses."""
    batches = {str(least): pairs for least, pairs in groups(pairs).items()}
    tokens = {least: round(fmean(len(line.split()) for _, line in batch)) for least, batch in batches.items()}
    loaded = {}
    for name, folder in models.items():
        trained = find_trained(folder)
        for least, length in tokens.items():
            settings = SETTINGS | {"max-len-a": 0, "max-len-b": length, "min-len": length}
            loaded[name, least] = Translator(trained.model, trained.dictionaries, languages, settings)
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


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("suite", type=Path, metavar="FILE", help="a suite file")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where its results are")
    parser.add_argument("--dataset", required=True, metavar="NAME", help="of which dataset")
    parser.add_argument(
        "--records", type=Path, required=True, metavar="DIR", help="the records beside the suite's page"
    )
    arguments = parser.parse_args()
    dataset, root = load_dataset(arguments.dataset), arguments.work / arguments.dataset
    suite = read_suite(arguments.suite, arguments.records)
    jobs = (job for name, _, job in run_jobs(suite, arguments.work) if job and name == arguments.dataset)
    models = timed_seeds(jobs)
    if dataset.target is None or not models:
        return
    made_from = {"conditions": conditions(), **{name: identity for name, (_, identity) in models.items()}}
    path = root / NAME
    if path.exists() and read_json(path)["made_from"] == made_from:
        print(f"= speed of {arguments.dataset}: nothing has changed, skipped", flush=True)
        return
    source, target = (read_lines(root / "prepared" / f"test.{lang}") for lang in (dataset.source, dataset.target))
    folders = {name: folder for name, (folder, _) in models.items()}
    found = measure(folders, list(zip(source, target, strict=True)), (dataset.source, dataset.target))
    write_json(path, {**found, "made_from": made_from})


if __name__ == "__main__":
    run_command(main)
