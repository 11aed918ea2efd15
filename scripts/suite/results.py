"""The figures of a suite from the records of its runs: scores, differences from the baseline, speeds, verdicts.

The interval of a difference has two parts, as of independent errors: the test set's, by paired bootstrap, and the
seeds', by one deviation, pooled over the dataset's models of several seeds. That is a rough estimate from few seeds, so
the interval is Student's, with Satterthwaite's degrees of freedom.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

from scipy.stats import t as student

from scripts.common.files import read_json
from scripts.pipeline.pipeline import fingerprint
from scripts.scoring.metrics import Measure
from scripts.scoring.significance import MetricOfCounts, paired_test, standard_error
from scripts.suite.plan import Claim, Suite, by_dataset, run_jobs
from scripts.suite.records import SCORES, Job, text_measures

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


@dataclass
class Dataset:
    """All runs of one dataset of a suite, and their statistics."""

    name: str
    kind: str  # of its scores
    baseline: str  # the suite's; where that is not trained, the first
    jobs: list[Job]
    facts: dict[str, Any]  # the content of <page>/<dataset>.json

    @cached_property
    def models(self) -> dict[str, Job]:
        """The runs that have scores, by name."""
        return {job.config.name: job for job in self.jobs if job.scored}

    @cached_property
    def diverged(self) -> dict[str, str]:
        """Names of what diverged, and with how many seeds."""
        wild = {job.config.name: (len(job.diverged), len(job.config.seeds)) for job in self.jobs if job.diverged}
        return {name: "" if some == of else f" with {some} of {of} seeds" for name, (some, of) in wild.items()}

    @property
    def key(self) -> str:
        """The score that models are compared by."""
        return SCORES[self.kind][0]

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """The measures on text as people write, by key; none of a language model."""
        return text_measures(self.name, self.kind)

    @cached_property
    def counted(self) -> MetricOfCounts | None:
        """The measure that models are compared by, of the counts of their lines; None of a language model."""
        return MetricOfCounts(self.measures[self.key].metric) if self.measures else None

    @cached_property
    def pooled(self) -> tuple[float, int] | None:
        """The variance of a score over the seeds and its degrees of freedom, of all models that have several seeds.

        None if none has.
        """
        several = [scores for model in self.models.values() if len(scores := model.scores(self.key)) > 1]
        freedom = sum(len(scores) - 1 for scores in several)
        if not freedom:
            return None
        return sum(variance(scores) * (len(scores) - 1) for scores in several) / freedom, freedom

    def difference(self, name: str, other: str) -> Interval:
        """The score of a model minus that of another; of perplexities, of which less is better, the other way round."""
        one, two = self.models[name], self.models[other]
        value, of_lines = fmean(one.scores(self.key)) - fmean(two.scores(self.key)), 0.0
        if self.counted is None:
            value = -value
        else:
            ours, theirs = ([model.lines(seed) for seed in model.scored] for model in (one, two))
            of_lines = standard_error(self.counted, ours, theirs) ** 2
        if self.pooled is None:
            return Interval(value, None, None)
        of_seeds = self.pooled[0] * (1 / len(one.scored) + 1 / len(two.scored))
        freedom = self.pooled[1] * (1 + of_lines / of_seeds) ** 2 if of_seeds else math.inf
        half = float(student.ppf(0.975, freedom)) * math.sqrt(of_seeds + of_lines)
        return Interval(value, value - half, value + half)

    def brevity(self, name: str) -> list[tuple[float, float]]:
        """Of each seed the length of its hypotheses over the references', and BLEU without its penalty for brevity."""
        assert self.counted is not None
        found = [self.counted.score(self.models[name].lines(seed)) for seed in self.models[name].scored]
        return [(each.ratio, each.score / each.bp if each.bp else 0.0) for each in found]

    def p_values(self, name: str, other: str) -> list[float | None]:
        """Return sacreBLEU's p by paired bootstrap and by approximate randomisation, over the seeds that both have."""
        one, two = self.models[name], self.models[other]
        both = [seed for seed in one.scored if seed in two.scored]
        if self.counted is None or not both:
            return [None, None]
        ours, theirs = ([line for seed in both for line in model.lines(seed)] for model in (one, two))
        return [paired_test(self.counted, ours, theirs, (), kind)[1].p_value for kind in ("bs", "ar")]

    @cached_property
    def speeds(self) -> dict[str, Any]:
        """Return what scripts.suite.speed measured of the models that are as they were then; empty if it has not."""
        found = self.facts.get("speed", {"seconds": {}})
        now = {name: fingerprint(model.config.train) for name, model in self.models.items()}
        seconds = {name: each for name, each in found["seconds"].items() if found["made_from"][name] == now.get(name)}
        return {**found, "seconds": seconds} if seconds else {}

    def speed(self, name: str, other: str, least: str) -> list[float]:
        """Return how many times as fast as another a model is, in each round."""
        seconds = self.speeds.get("seconds", {})
        if name not in seconds or other not in seconds:
            return []
        return [theirs / ours for ours, theirs in zip(seconds[name][least], seconds[other][least], strict=True)]


def collect(suite: Suite) -> list[Dataset]:
    """Read all records of a suite's page."""
    datasets, baseline = [], Path(suite.baseline).name
    for name, jobs in by_dataset(run_jobs(suite)).items():
        path, names = suite.facts(name), [job.config.name for job in jobs]
        facts = read_json(path) if path.exists() else {}
        datasets.append(Dataset(name, jobs[0].kind, baseline if baseline in names else names[0], jobs, facts))
    return datasets


@dataclass(frozen=True)
class Finding:
    """A claim's figure on one dataset; a word where there is none."""

    dataset: str
    verdict: str
    figure: Interval | None = None
    note: str = ""


def judge(claim: Claim, dataset: Dataset) -> Finding:
    """Judge a claim by what there is of a dataset."""
    model, than, note = Path(claim.model).name, Path(claim.than).name, ""
    if claim.of == "score":
        diverged = [name for name in (model, than) if name in dataset.diverged]
        if diverged and {model, than} <= dataset.models.keys() | dataset.diverged.keys():
            verdict = UNDECIDED if len(diverged) == 2 else HELD if diverged == [than] else FAILED
            note = " and ".join(f"{name} diverged{dataset.diverged[name]}" for name in diverged)
            return Finding(dataset.name, verdict, note=note)
        if not {model, than} <= dataset.models.keys():
            return Finding(dataset.name, ABSENT)
        figure = dataset.difference(model, than)
        if figure.low is None:
            note = "one seed each, and no model of several seeds to tell how much a seed does"
    else:
        rounds = [dataset.speed(model, than, least) for least in dataset.speeds.get("lines", {})]
        if not rounds or not rounds[-1]:
            return Finding(dataset.name, ABSENT)
        ratios = rounds[-1]
        if claim.of == "growth":
            ratios = [long / short for long, short in zip(ratios, rounds[0], strict=True)]
        figure = Interval(median(ratios), min(ratios), max(ratios))
    return Finding(dataset.name, figure.verdict(claim.at_least), figure, note)


def findings(claim: Claim, datasets: Sequence[Dataset]) -> list[Finding]:
    """Judge a claim on each dataset that it names, or on all translations, if the suite has both models there."""
    named, both = claim.datasets, {Path(claim.model).name, Path(claim.than).name}
    return [
        judge(claim, each)
        for each in datasets
        if (each.name in named if named else each.kind == "bleu") and both <= {job.config.name for job in each.jobs}
    ]


def overall(found: Sequence[Finding]) -> str:
    """The verdict of all datasets together: held where it held on all that were run."""
    verdicts = {each.verdict for each in found}
    return next((verdict for verdict in (FAILED, UNDECIDED, HELD) if verdict in verdicts), ABSENT)
