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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from data_prep.dataset import load_dataset
from scripts.common.errors import UserError
from scripts.common.files import atomic_file
from scripts.common.schema import build, require
from scripts.common.strict_yaml import read_yaml
from scripts.pipeline.config import Config, build_config, combinations, load_config, merge
from scripts.suite.records import read_kept, read_run

QUANTITIES = ("score", "speed", "growth")


def _named(model: str, choice: Mapping[str, Any]) -> str:
    """Return a model's name with its choice of values, as a file may be called: model-lr0.002-softmax."""
    values = (value if isinstance(value, str) else f"{key}{value}" for key, value in choice.items())
    return "-".join([Path(model).name, *(re.sub(r"[^\w.-]+", "-", value).strip("-") for value in values)])


@dataclass(frozen=True)
class Trials:
    """Trainings that choose the values of ``grid`` for each model."""

    dataset: str
    models: tuple[str, ...]
    grid: dict[str, Any]
    seed: int = 1
    train: dict[str, Any] = field(default_factory=dict)
    like: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """Models of one dataset that are trained with the same seeds."""

    dataset: str
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: dict[str, Any] = field(default_factory=dict)
    over: dict[str, Any] = field(default_factory=dict)

    def each(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the name of each run, its model and its choice of the grid."""
        for model, choice in itertools.product(self.models, combinations(self.grid)):
            yield _named(model, choice) if choice else model, model, choice


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
    """A suite file."""

    file: Path
    records: Path  # the folder of the page's records
    about: str
    baseline: str
    runs: tuple[Runs, ...]
    trials: tuple[Trials, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def models(self) -> list[str]:
        """All models of all runs, each once."""
        return list(dict.fromkeys(model for runs in self.runs for model in runs.models))

    @property
    def datasets(self) -> list[str]:
        """All datasets of all runs, each once."""
        return list(dict.fromkeys(runs.dataset for runs in self.runs))

    @property
    def like(self) -> dict[str, str]:
        """The models that are given the values found for another."""
        return {model: other for trials in self.trials for model, other in trials.like.items()}


def read_suite(path: Path, records: Path) -> Suite:
    """Read a suite file; ``records`` is the folder beside its page.

    Raises:
        UserError: a key is unknown or of another type, or something is named that is not there.
    """
    suite: Suite = build(Suite, read_yaml(path), file=path, given={"file": path, "records": records})
    known = set(suite.models)
    names = {name for runs in suite.runs for name, _, _ in runs.each()}
    for dataset in suite.datasets:
        load_dataset(dataset)
        require(path, "/" not in dataset, "runs.dataset", dataset, "a name, which its folder in work/ has too")
    require(path, len(known) == len({Path(model).name for model in known}), "runs", sorted(known), "different names")
    claimed = [name for claim in suite.claims for name in (claim.model, claim.than)]
    named = [("baseline", suite.baseline, known), *(("claims", name, names) for name in claimed)]
    for trials in suite.trials:
        require(path, trials.dataset in suite.datasets, "trials.dataset", trials.dataset, "a dataset of `runs`")
        named += [("trials", name, known) for name in (*trials.models, *trials.like, *trials.like.values())]
        for model, other in trials.like.items():
            require(path, other in trials.models, f"trials.like.{model}", other, "one of trials.models")
    tried = Counter(model for trials in suite.trials for model in (*trials.models, *trials.like))
    twice = [model for model, count in tried.items() if count > 1]
    require(path, not twice, "trials", ", ".join(twice), "each model once")
    grids = [("trials.grid", trials.grid) for trials in suite.trials]
    for where, grid in [*grids, *(("runs.grid", runs.grid) for runs in suite.runs)]:
        for key, values in grid.items():
            require(path, isinstance(values, list) and values, f"{where}.{key}", values, "a list of values")
    runs_of = Counter(f"{runs.dataset}/{Path(name).name}" for runs in suite.runs for name, _, _ in runs.each())
    twice = [name for name, count in runs_of.items() if count > 1]
    require(path, not twice, "runs", ", ".join(twice), "each model of a dataset once")
    for key, name, of in named:
        require(path, name in of, key, name, f"one of `runs`: {', '.join(sorted(of))}")
    for claim in suite.claims:
        require(path, claim.of in QUANTITIES, "claims.of", claim.of, f"one of {', '.join(QUANTITIES)}")
    return suite


@dataclass(frozen=True)
class Job:
    """A call of scripts.reproduce: a configuration, up to a stage."""

    config: Config
    model: str
    work: Path
    text: str  # of its configuration
    kept: Path  # its record beside the page
    last: str = "table"

    def write_config(self) -> None:
        """Write its configuration, unless it is there."""
        path = self.config.path
        if not path.exists() or path.read_text(encoding="utf-8") != self.text:
            with atomic_file(path) as f:
                f.write(self.text)

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.work / self.config.dataset / self.config.name

    @property
    def name(self) -> str:
        """Dataset and run."""
        return f"{self.config.dataset}/{self.config.name}"

    @property
    def seeds(self) -> dict[int, dict[str, Any]]:
        """Facts of each seed that has come to its end: from its record, or else from the run's folder."""
        here, kept = read_run(self.folder, self.config), read_kept(self.kept, self.config)
        found = {seed: facts for seed, facts in here.get("seeds", {}).items() if self._ended(facts)}
        found |= kept.get("seeds", {})
        return {seed: found[str(seed)] for seed in self.config.seeds if str(seed) in found}

    def _ended(self, facts: Mapping[str, Any]) -> bool:
        """Return True if a seed diverged, which is a result, has its scores, or, of a trial, a loss on validation."""
        return bool("diverged" in facts["training"] or facts["valid_loss" if self.last == "train" else "test"])

    @property
    def scored(self) -> list[int]:
        """The seeds that have their scores."""
        return [seed for seed, facts in self.seeds.items() if facts["test"]]

    @property
    def diverged(self) -> list[int]:
        """The seeds whose training diverged."""
        return [seed for seed, facts in self.seeds.items() if "diverged" in facts["training"]]

    @property
    def missing(self) -> list[int]:
        """The seeds that are left to run."""
        known = self.seeds
        return [seed for seed in self.config.seeds if seed not in known]

    @property
    def done(self) -> bool:
        """Return True if there is nothing left to run."""
        return not self.missing

    def loss(self) -> float | None:
        """The least loss on validation of the first seed; None before it has come to its end."""
        facts = self.seeds.get(self.config.seeds[0])
        if facts is None:
            return None
        return float("inf") if "diverged" in facts["training"] else min(facts["valid_loss"].values(), default=None)


def trial_jobs(suite: Suite, work: Path) -> list[tuple[Job, dict[str, Any]]]:
    """The trainings of the trials, each with its choice of values."""
    found = []
    for trials in suite.trials:
        for model, choice in itertools.product(trials.models, combinations(trials.grid)):
            name = f"trial-{_named(model, choice)}"
            over = {"train": trials.train | choice, "average": None, "tune": None, "speed": None}
            found.append((_job(suite, work, model, trials.dataset, (trials.seed,), over, name, "train"), choice))
    return found


def chosen(suite: Suite, work: Path) -> dict[str, dict[str, Any]]:
    """The values that the trials give each model, by model; a model is left out until all of its trials have ended."""
    losses: dict[str, list[tuple[float | None, dict[str, Any]]]] = {}
    for job, choice in trial_jobs(suite, work):
        losses.setdefault(job.model, []).append((job.loss(), choice))
    best = {}
    for model, tried in losses.items():
        if all(loss is not None for loss, _ in tried):
            best[model] = min(tried, key=lambda one: one[0] or 0.0)[1]
    return best | {model: best[other] for model, other in suite.like.items() if other in best}


def run_jobs(suite: Suite, work: Path, some: Sequence[Runs] = ()) -> Iterator[tuple[str, str, Job | None]]:
    """Yield dataset, model and job of every run, or of ``some``; no job where its trials have still to end."""
    values = chosen(suite, work)
    waiting = {model for trials in suite.trials for model in (*trials.models, *trials.like)} - values.keys()
    for runs in some or suite.runs:
        for name, model, choice in runs.each():
            if model in waiting:
                yield runs.dataset, name, None
                continue
            over = merge({"train": values.get(model, {})}, runs.over)
            over = merge(over, {"train": choice, "speed": None})  # scripts.suite.speed times all together
            yield runs.dataset, name, _job(suite, work, model, runs.dataset, runs.seeds, over, Path(name).name)


def _job(
    suite: Suite,
    work: Path,
    model: str,
    dataset: str,
    seeds: tuple[int, ...],
    over: Mapping[str, Any],
    name: str,
    last: str = "table",
) -> Job:
    source = suite.file.parent / f"{model}.yaml"
    if not source.is_file():
        raise UserError(f"{suite.file}: there is no {source}; expected a configuration for the model {model}")
    given = {key: value for key, value in load_config(source, dataset).merged().items() if value}
    content = merge(given, {**over, "seeds": list(seeds)})
    text = f"# {model}.yaml as {suite.file.name} trains it\n" + yaml.safe_dump(content, sort_keys=False)
    config = build_config(work / "configs" / dataset / f"{name}.yaml", content)
    return Job(config, model, work, text, suite.records / dataset / f"{name}.json", last)
