"""The figures of a suite from the records of its runs: scores, differences from the baseline, speeds, verdicts.

The interval of a difference has two parts, as of independent errors: the test set's, by paired bootstrap, and the
seeds', by one deviation, pooled over the dataset's models of several seeds. That is a rough estimate from few seeds, so
the interval is Student's, with Satterthwaite's degrees of freedom.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

from scipy.stats import t as student

from data_prep.dataset import load_dataset
from scripts.common.files import read_json
from scripts.fairseq_io.trainlog import TrainLog
from scripts.pipeline.config import Config
from scripts.pipeline.stamp import fingerprint
from scripts.scoring.detokenise import lowercases
from scripts.scoring.metrics import Measure, measures
from scripts.scoring.score_names import FAMILY
from scripts.scoring.significance import MetricOfCounts, paired_test, standard_error
from scripts.suite.plan import Claim, Job, Suite, run_jobs
from scripts.suite.records import read_kept

SHOWN = {"bleu": ("sacrebleu", "chrf"), "rouge": ("rouge1", "rouge2", "rougeL"), "perplexity": ("perplexity",)}
"""The scores of a page by the kind of a dataset's score; claims are about the first of each."""
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
    """A model of a dataset with its record beside the page."""

    name: str
    job: Job
    parameters: int
    known: dict[int, dict[str, Any]]  # of each seed that was trained
    seeds: list[int]  # those that have their scores

    def scores(self, key: str) -> list[float]:
        """The score of each seed on test."""
        return [self.known[seed]["test"][key] for seed in self.seeds]

    def lines(self, seed: int) -> list[str]:
        """Of each line of the test set, what the first score of a seed is made of (``MetricOfCounts``)."""
        return str(self.known[seed]["lines"]).split("; ")

    def logs(self) -> dict[int, TrainLog]:
        """The losses of each seed."""
        losses = {seed: [self.known[seed][key] for key in ("train_loss", "valid_loss")] for seed in self.seeds}
        by_update = {seed: [{int(n): loss for n, loss in one.items()} for one in two] for seed, two in losses.items()}
        return {seed: TrainLog(train_loss=train, valid_loss=valid) for seed, (train, valid) in by_update.items()}

    def facts(self, part: str, key: str) -> list[float]:
        """A figure of each seed's ``training`` or ``generation`` that has it."""
        return [self.known[seed][part][key] for seed in self.seeds if key in self.known[seed][part]]


@dataclass
class Dataset:
    """All that there is of one dataset of a suite."""

    name: str
    kind: str
    baseline: str  # the suite's; where that is not trained, the first
    facts: dict[str, Any]
    """The content of <page>/<dataset>.json."""
    jobs: list[tuple[str, Job | None]] = field(default_factory=list)
    models: dict[str, Model] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)
    """Names of what diverged, and with how many seeds."""

    @property
    def key(self) -> str:
        """The score that models are compared by."""
        return SHOWN[self.kind][0]

    @property
    def target(self) -> str | None:
        """The language of the references."""
        return load_dataset(self.name).target

    @property
    def lowercase(self) -> bool:
        """Return True if its target has lost its case, so that scores take no account of it."""
        return self.target is not None and lowercases(load_dataset(self.name), self.target)

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """The measures on text as people write, by key; none of a language model."""
        if self.kind == "perplexity" or self.target is None:
            return {}
        found = measures({"metric": self.kind}, self.target, lowercase=self.lowercase)
        return {key: found[key] for key in SHOWN[self.kind]}

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
        difference = fmean(one.scores(self.key)) - fmean(two.scores(self.key))
        seeds = 1 / len(one.seeds) + 1 / len(two.seeds)
        measure = self.measures.get(self.key)
        if measure is None:
            return self._interval(-difference, seeds, 0.0)
        ours, theirs = ([model.lines(seed) for seed in model.seeds] for model in (one, two))
        return self._interval(difference, seeds, standard_error(MetricOfCounts(measure.metric), ours, theirs) ** 2)

    def brevity(self, name: str) -> list[tuple[float, float]]:
        """Of each seed the length of its hypotheses over the references', and BLEU without its penalty for brevity."""
        model, metric = self.models[name], MetricOfCounts(self.measures["sacrebleu"].metric)
        found = [metric.score(model.lines(seed)) for seed in model.seeds]
        return [(each.ratio, each.score / each.bp if each.bp else 0.0) for each in found]

    def p_values(self, name: str, other: str) -> list[float | None]:
        """Return sacreBLEU's p by paired bootstrap and by approximate randomisation, over the seeds that both have."""
        one, two = self.models[name], self.models[other]
        both = [seed for seed in one.seeds if seed in two.seeds]
        measure = self.measures.get(self.key)
        if measure is None or not both:
            return [None, None]
        ours, theirs = ([line for seed in both for line in model.lines(seed)] for model in (one, two))
        return [paired_test(MetricOfCounts(measure.metric), ours, theirs, (), kind)[1].p_value for kind in ("bs", "ar")]

    def _interval(self, value: float, seeds: float, of_lines: float) -> Interval:
        """The interval of a difference.

        ``seeds``: how often the seeds' variance is in its variance; ``of_lines``: the test set's part of that.
        """
        if self.pooled is None:
            return Interval(value, None, None)
        of_seeds = self.pooled[0] * seeds
        freedom = self.pooled[1] * (1 + of_lines / of_seeds) ** 2 if of_seeds else math.inf
        half = float(student.ppf(0.975, freedom)) * math.sqrt(of_seeds + of_lines)
        return Interval(value, value - half, value + half)

    @cached_property
    def speeds(self) -> dict[str, Any] | None:
        """Return what scripts.suite.speed measured of the models that are as they were then; None if it has not."""
        if "speed" not in self.facts:
            return None
        found = self.facts["speed"]
        now = {name: architecture(model.job.config) for name, model in self.models.items()}
        seconds = {name: each for name, each in found["seconds"].items() if found["made_from"][name] == now.get(name)}
        return {**found, "seconds": seconds} if seconds else None

    def speed(self, name: str, other: str, least: str) -> list[float]:
        """Return how many times as fast as another a model is, in each round."""
        seconds = (self.speeds or {}).get("seconds", {})
        if name not in seconds or other not in seconds:
            return []
        return [theirs / ours for ours, theirs in zip(seconds[name][least], seconds[other][least], strict=True)]


def architecture(config: Config) -> str:
    """Return the identity of a model's flags, on which its speed depends."""
    return fingerprint(config.train)


def collect(suite: Suite, work: Path) -> list[Dataset]:
    """Read all records of a suite's page."""
    found: dict[str, Dataset] = {}
    for name, model, job in run_jobs(suite, work):
        short, path = Path(model).name, suite.records / f"{name}.json"
        if name not in found:
            found[name] = Dataset(name, "bleu", short, read_json(path) if path.exists() else {})
        dataset = found[name]
        dataset.jobs.append((short, job))
        if model == suite.baseline:
            dataset.baseline = short
        if job is None:
            continue
        dataset.kind = FAMILY[job.config.metric]
        record = read_kept(job.kept, job.config)
        known = {int(seed): facts for seed, facts in record.get("seeds", {}).items()}
        if seeds := [seed for seed, facts in known.items() if facts["test"]]:
            dataset.models[short] = Model(short, job, record["parameters"], known, seeds)
        if wild := sum("diverged" in facts["training"] for facts in known.values()):
            all_of = len(job.config.seeds)
            dataset.diverged[short] = "" if wild == all_of else f" with {wild} of {all_of} seeds"
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
    diverged = [name for name in (model, than) if name in dataset.diverged]
    if diverged and {model, than} <= dataset.models.keys() | dataset.diverged.keys():
        verdict = UNDECIDED if len(diverged) == 2 else HELD if diverged == [than] else FAILED
        note = " and ".join(f"{name} diverged{dataset.diverged[name]}" for name in diverged)
        return Finding(dataset.name, verdict, note=note)
    if model not in dataset.models or than not in dataset.models:
        return Finding(dataset.name, ABSENT)
    figure = dataset.difference(model, than)
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
