"""The figures of a suite from the records of its runs: scores, differences from the baseline, speeds, verdicts.

The interval of a difference has two parts, as of independent errors: the test set's, by paired bootstrap, and the
seeds', by the deviation over them. A model of one seed has the deviation of the models of its dataset that have
several, taken together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

from data_prep.dataset import load_dataset
from scripts.common.files import read_json, read_lines
from scripts.reproduce.layout import seed_root
from scripts.scoring.detokenise import lowercases
from scripts.scoring.metrics import Measure, measures
from scripts.scoring.score_names import FAMILY
from scripts.scoring.significance import p_value, standard_error
from scripts.suite import speed
from scripts.suite.plan import Claim, Job, Suite, run_jobs

SHOWN = {"bleu": ("sacrebleu", "chrf"), "rouge": ("rouge1", "rouge2", "rougeL"), "perplexity": ("perplexity",)}
"""The scores of a page by the kind of a dataset's score; claims are about the first of each."""
NORMAL = 1.96
HELD, FAILED, UNDECIDED, ABSENT = "held", "did not hold", "cannot be told at this size", "not run"


@dataclass(frozen=True)
class Interval:
    """A figure and the 95% interval about it; ``low`` is None where nothing tells how sure it is."""

    value: float
    low: float | None
    high: float | None

    def verdict(self, at_least: float) -> str:
        """Return whether the figure is at least so much."""
        if self.low is None or self.high is None or self.low < at_least <= self.high:
            return UNDECIDED
        return HELD if self.low >= at_least else FAILED


@dataclass(frozen=True)
class Model:
    """A model of a dataset with what its seeds left behind."""

    name: str
    job: Job
    record: Mapping[str, Any]

    @property
    def seeds(self) -> list[int]:
        """The seeds that have their scores."""
        return self.job.scored

    def scores(self, key: str) -> list[float]:
        """The score of each seed on test."""
        return [self.record["seeds"][str(seed)]["test"][key] for seed in self.seeds]

    def hypotheses(self, seed: int) -> list[str]:
        """The lines that a seed's model wrote for the test set, as people write."""
        return read_lines(seed_root(self.job.folder, seed) / "scores" / "test" / "hypotheses.detok")

    def facts(self, part: str, key: str) -> list[float]:
        """A figure of each seed's ``training`` or ``generation`` that has it."""
        found = [(self.record["seeds"][str(seed)][part] or {}).get(key) for seed in self.seeds]
        return [value for value in found if value is not None]


@dataclass(frozen=True)
class Comparison:
    """A model against another on the same test set."""

    difference: Interval
    seeds: tuple[int, ...]  # those that both have, which the tests are about
    bootstrap: float | None = None
    randomisation: float | None = None


@dataclass
class Dataset:
    """All that there is of one dataset of a suite."""

    name: str
    root: Path
    kind: str
    baseline: str  # the suite's; where that is not trained, the first
    jobs: list[tuple[str, Job | None]]
    models: dict[str, Model] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    _compared: dict[tuple[str, str, str], Comparison] = field(default_factory=dict)

    @property
    def target(self) -> str | None:
        """The language of the references."""
        return load_dataset(self.name).target

    @cached_property
    def references(self) -> list[str]:
        """The untouched references of the test set."""
        return read_lines(self.root / "prepared" / "raw" / f"test.{self.target}")

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """The measures on text as people write, by key; none of a language model."""
        dataset = load_dataset(self.name)
        if self.kind == "perplexity" or dataset.target is None:
            return {}
        lowercase = lowercases(dataset, dataset.target)
        found = measures({"metric": self.kind}, dataset.target, lowercase=lowercase)
        return {key: found[key] for key in SHOWN[self.kind]}

    @cached_property
    def pooled(self) -> float | None:
        """The variance of a score over the seeds, of all models that have several; None if none has."""
        key = SHOWN[self.kind][0]
        several = [scores for model in self.models.values() if len(scores := model.scores(key)) > 1]
        freedom = sum(len(scores) - 1 for scores in several)
        return sum(variance(scores) * (len(scores) - 1) for scores in several) / freedom if freedom else None

    def compare(self, name: str, other: str, key: str) -> Comparison:
        """Compare two models that have scores; ``key`` names the score."""
        if (name, other, key) not in self._compared:
            self._compared[name, other, key] = self._compare(self.models[name], self.models[other], key)
        return self._compared[name, other, key]

    def _compare(self, one: Model, two: Model, key: str) -> Comparison:
        both = tuple(seed for seed in one.seeds if seed in two.seeds)
        difference = fmean(one.scores(key)) - fmean(two.scores(key))
        measure = self.measures.get(key)
        errors = [self._seed_error(model, key) for model in (one, two)]
        if measure is None:  # a perplexity, of which less is better
            return Comparison(_interval(-difference, errors), both)
        ours, theirs = ([model.hypotheses(seed) for seed in model.seeds] for model in (one, two))
        errors.append(standard_error(measure.metric, ours, theirs, self.references) ** 2)
        joined = [[line for seed in both for line in model.hypotheses(seed)] for model in (one, two)]
        references = self.references * len(both)
        tests = [p_value(measure.metric, joined[0], joined[1], references, kind)[0] for kind in ("bs", "ar")]
        return Comparison(_interval(difference, errors), both, *tests)

    def _seed_error(self, model: Model, key: str) -> float | None:
        scores = model.scores(key)
        over = variance(scores) if len(scores) > 1 else self.pooled if key == SHOWN[self.kind][0] else None
        return None if over is None else over / len(scores)

    @cached_property
    def speeds(self) -> dict[str, Any] | None:
        """Return what scripts.suite.speed measured, if it has."""
        path = self.root / speed.NAME
        return read_json(path) if path.exists() else None

    def speed(self, name: str, other: str, least: str) -> list[float]:
        """Return how many times as fast as another a model is, in each round."""
        seconds = (self.speeds or {}).get("seconds", {})
        if name not in seconds or other not in seconds:
            return []
        return [theirs / ours for ours, theirs in zip(seconds[name][least], seconds[other][least], strict=True)]


def _interval(value: float, errors: Sequence[float | None]) -> Interval:
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return Interval(value, None, None)
    half = NORMAL * math.sqrt(sum(known))
    return Interval(value, value - half, value + half)


def collect(suite: Suite, work: Path) -> list[Dataset]:
    """Read all that the runs of a suite left behind."""
    found: dict[str, Dataset] = {}
    for name, model, job in run_jobs(suite, work):
        short = Path(model).name
        kind = FAMILY[job.config.metric] if job else "bleu"
        dataset = found.setdefault(name, Dataset(name, work / name, kind, short, []))
        dataset.jobs.append((short, job))
        if job and job.record and job.scored:
            dataset.models[short] = Model(short, job, job.record)
        elif job and job.diverged:
            dataset.diverged.append(short)
        if model == suite.baseline:
            dataset.baseline = short
    return list(found.values())


@dataclass(frozen=True)
class Finding:
    """A claim's figure on one dataset; a word where there is none."""

    dataset: str
    verdict: str
    figure: Interval | None = None
    note: str = ""


def judge(claim: Claim, dataset: Dataset) -> Finding:
    """Judge a claim by what there is of a dataset."""
    model, than = Path(claim.model).name, Path(claim.than).name
    if claim.of != "score":
        return _judge_speed(claim, dataset, model, than)
    if than in dataset.diverged and model in dataset.models:
        return Finding(dataset.name, HELD, note=f"{than} diverged")
    if model in dataset.diverged and than in dataset.models:
        return Finding(dataset.name, FAILED, note=f"{model} diverged")
    if model not in dataset.models or than not in dataset.models:
        return Finding(dataset.name, ABSENT)
    figure = dataset.compare(model, than, SHOWN[dataset.kind][0]).difference
    note = "" if figure.low is not None else "one seed each, and no model of several seeds to tell how much a seed does"
    return Finding(dataset.name, figure.verdict(claim.at_least), figure, note)


def _judge_speed(claim: Claim, dataset: Dataset, model: str, than: str) -> Finding:
    lengths = list((dataset.speeds or {}).get("lines", {}))
    if not lengths or not (ratios := dataset.speed(model, than, lengths[-1])):
        return Finding(dataset.name, ABSENT)
    if claim.of == "growth":
        short = dataset.speed(model, than, lengths[0])
        ratios = [long / before for long, before in zip(ratios, short, strict=True)]
    figure = Interval(median(ratios), min(ratios), max(ratios))
    return Finding(dataset.name, figure.verdict(claim.at_least), figure)


def findings(claim: Claim, datasets: Sequence[Dataset]) -> list[Finding]:
    """Judge a claim on each dataset that it names, or on all translations, if the suite has both models there."""
    named, both = claim.datasets, {Path(claim.model).name, Path(claim.than).name}
    return [
        judge(claim, each)
        for each in datasets
        if (each.name in named if named else each.kind == "bleu") and both <= {name for name, _ in each.jobs}
    ]


def overall(found: Sequence[Finding]) -> str:
    """The verdict of all datasets together: held where it held on all that were run."""
    verdicts = {each.verdict for each in found} - {ABSENT}
    if not verdicts:
        return ABSENT
    return next(verdict for verdict in (FAILED, UNDECIDED, HELD) if verdict in verdicts)
