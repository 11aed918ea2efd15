"""A suite file, and the configurations that its trials and runs are made with.

  about: text          what the comparison is about, for the page
  baseline: MODEL      whom the others are compared with; a MODEL is the path of a configuration beside the suite file,
                       without .yaml
  trials:              of each model in `models` every combination of the grid is trained; the least loss on validation
                       gives the values that the model is trained with in all runs
    [{dataset: NAME, models: [MODEL, ...], seed: N, train: {...}, grid: {lr: [...], ...}, like: {MODEL: MODEL}}, ...]
                       `train` goes over the configurations' own; `like` gives a model the values found for another
  runs: [{dataset: NAME, models: [MODEL, ...], seeds: [N, ...], grid: {...}, over: {...}}, ...]   in this order
                       with a `grid`, each model is trained with every combination of it, under a name that says which:
                       dynamicconv-max-epoch30; `over` goes over the configurations and the trials' values:
                       {tune: {last: [1]}}
  claims: [{says: text, model: MODEL, than: MODEL, at_least: X, of: score, datasets: [NAME, ...]}, ...]
                       the model's figure minus the other's is at least X; of: score (sacreBLEU, ROUGE-1 or minus the
                       perplexity), speed (ratios, at the longest sentences) or growth (that ratio over the one at the
                       shortest). Here MODEL may be the name of a run with a grid

Each trial and each run gets a whole configuration in DIR/configs, which scripts.reproduce takes as it takes any other.
It is written when its job is about to run, and not for a look at what there is: another process may be running by it.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from data_prep.dataset import load_dataset
from scripts.common.errors import UserError
from scripts.common.schema import build, require
from scripts.common.strict_yaml import read_yaml
from scripts.pipeline.config import build_config, combinations, load_config, merge
from scripts.suite.records import Job, keep

QUANTITIES = {
    "score": ("+.2f", ""),
    "speed": (".2f", " times as fast"),
    "growth": (".2f", " times that at the shortest"),
}
"""Of a claim: the form of its figure, and its unit."""


@dataclass(frozen=True)
class Trials:
    """Trainings that choose the values of ``grid`` for each model."""

    dataset: str
    models: tuple[str, ...]
    grid: dict[str, tuple[Any, ...]]
    seed: int = 1
    train: dict[str, Any] = field(default_factory=dict)
    like: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """Models of one dataset that are trained with the same seeds."""

    dataset: str
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    over: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper's as a difference of two models that is at least so much."""

    says: str
    model: str
    than: str
    at_least: float
    of: str = "score"
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A suite file; ``work`` is where its results go, and the records are in a folder beside ``page``, of its name."""

    file: Path
    work: Path
    page: Path
    about: str
    baseline: str
    runs: tuple[Runs, ...]
    trials: tuple[Trials, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def records(self) -> Path:
        """The folder of the page's records and pictures."""
        return self.page.with_suffix("")

    def facts(self, dataset: str) -> Path:
        """The record of what is of a dataset, and not of a run."""
        return self.records / f"{dataset}.json"

    @property
    def models(self) -> list[str]:
        """All models of all runs, each once."""
        return list(dict.fromkeys(model for runs in self.runs for model in runs.models))

    @property
    def like(self) -> dict[str, str]:
        """The models that are given the values found for another."""
        return {model: other for trials in self.trials for model, other in trials.like.items()}


def read_suite(path: Path, work: Path, page: Path) -> Suite:
    """Read a suite file.

    Raises:
        UserError: a key is unknown or of another type, or something is named that is not there.
    """
    suite: Suite = build(Suite, read_yaml(path), file=path, given={"file": path, "work": work, "page": page})
    datasets = dict.fromkeys(runs.dataset for runs in suite.runs)
    for dataset in datasets:
        load_dataset(dataset)
        require(path, "/" not in dataset, "runs.dataset", dataset, "a name, which its folder in work/ has too")
    for where, all_of in (("trials", suite.trials), ("runs", suite.runs)):
        for each in all_of:
            for key, values in each.grid.items():
                require(path, values, f"{where}.grid.{key}", [], "a list of values")

    def once(key: str, names: Sequence[str], expected: str) -> None:
        twice = [name for name, count in Counter(names).items() if count > 1]
        require(path, not twice, key, ", ".join(twice), expected)

    models, runs = suite.models, [(runs.dataset, name) for runs in suite.runs for name, _, _ in _each(runs)]
    once("runs", [Path(model).name for model in models], "different names")
    once("runs", [f"{dataset}/{Path(name).name}" for dataset, name in runs], "each model of a dataset once")
    once("trials", [model for trials in suite.trials for model in (*trials.models, *trials.like)], "each model once")
    named = [("baseline", suite.baseline, models)]
    for claim in suite.claims:
        require(path, claim.of in QUANTITIES, "claims.of", claim.of, f"one of {', '.join(QUANTITIES)}")
        named += [("claims", name, [name for _, name in runs]) for name in (claim.model, claim.than)]
    for trials in suite.trials:
        require(path, trials.dataset in datasets, "trials.dataset", trials.dataset, "a dataset of `runs`")
        named += [("trials", name, models) for name in (*trials.models, *trials.like)]
        for model, other in trials.like.items():
            require(path, other in trials.models, f"trials.like.{model}", other, "one of trials.models")
    for key, name, of in named:
        require(path, name in of, key, name, f"one of `runs`: {', '.join(sorted(of))}")
    return suite


def _each(some: Trials | Runs) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a name that says model and choice, such as model-lr0.002-softmax, the model and its choice of the grid."""
    for model, choice in itertools.product(some.models, combinations(some.grid)):
        values = (value if isinstance(value, str) else f"{key}{value}" for key, value in choice.items())
        words = [re.sub(r"[^\w.-]+", "-", value).strip("-") for value in values]
        yield "-".join([Path(model).name, *words]) if words else model, model, choice


def trial_jobs(suite: Suite) -> list[Job]:
    """The trainings of the trials."""
    jobs = []
    for trials in suite.trials:
        for name, model, choice in _each(trials):
            over = {"train": trials.train | choice, "average": None, "tune": None, "seeds": [trials.seed]}
            jobs.append(_job(suite, model, choice, f"trial-{Path(name).name}", trials.dataset, over, last="train"))
    return jobs


def chosen(suite: Suite) -> dict[str, dict[str, Any]]:
    """The values that the trials give each model, by model; a model is left out until all of its trials have ended."""
    tried: dict[str, list[Job]] = {}
    for job in trial_jobs(suite):
        tried.setdefault(job.model, []).append(job)
    best = {
        model: min(jobs, key=lambda job: job.loss or 0.0).choice
        for model, jobs in tried.items()
        if all(job.loss is not None for job in jobs)
    }
    return best | {model: best[other] for model, other in suite.like.items() if other in best}


def run_jobs(suite: Suite) -> list[Job]:
    """All runs in their order; those whose trials have still to end are marked."""
    values, jobs = chosen(suite), []
    tried = {model for trials in suite.trials for model in (*trials.models, *trials.like)}
    for runs in suite.runs:
        for name, model, choice in _each(runs):
            over = merge({"train": values.get(model, {})}, runs.over)
            over = merge(over, {"train": choice, "seeds": list(runs.seeds)})
            waits = model in tried and model not in values
            jobs.append(_job(suite, model, choice, Path(name).name, runs.dataset, over, waits=waits))
    return jobs


def by_dataset(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Sort jobs by their dataset."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.config.dataset, []).append(job)
    return found


def jobs_of(suite: Suite) -> dict[str, list[Job]]:
    """The trials and runs that can be run, by dataset."""
    return by_dataset(job for job in [*trial_jobs(suite), *run_jobs(suite)] if not job.waits)


def keep_all(suite: Suite) -> None:
    """Take what has come to its end into the records, each dataset's by itself.

    Raises:
        UserError: the text of a dataset is not that of its records; those of the others are written.
    """
    errors = []
    for last in ("train", "table"):  # trials first: they decide the configurations of runs
        for dataset, jobs in jobs_of(suite).items():
            try:
                keep(jobs, last, suite.facts(dataset))
            except UserError as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _job(
    suite: Suite, model: str, choice: dict[str, Any], name: str, dataset: str, over: Mapping[str, Any], **more: Any
) -> Job:
    source = suite.file.parent / f"{model}.yaml"
    if not source.is_file():
        raise UserError(f"{suite.file}: there is no {source}; expected a configuration for the model {model}")
    given = {key: value for key, value in load_config(source, dataset).merged().items() if value}
    content = merge(given, {**over, "speed": None})  # the suite times all models together
    text = f"# {model}.yaml as {suite.file.name} trains it\n" + yaml.safe_dump(content, sort_keys=False)
    config = build_config(suite.work / "configs" / dataset / f"{name}.yaml", content)
    kept = suite.records / dataset / f"{name}.json"
    return Job(config, model, choice, text, suite.work / dataset / name, kept, **more)
