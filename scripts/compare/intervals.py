"""Scores and differences of scores with their 95% confidence intervals.

An interval covers two independent errors: that of the choice of test sentences, estimated by paired bootstrap, and that
of the choice of seeds, estimated by one variance, pooled over the models with several seeds. That variance comes from
few seeds, so the interval uses Student's t distribution with Satterthwaite's degrees of freedom.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import NamedTuple

from scipy.stats import t as student

from data_prep.common.errors import UserError
from scripts.compare.plan import Run
from scripts.scoring.significance import standard_error

HELD, FAILED, UNDECIDED = "held", "did not hold", "undecided"


@dataclass(frozen=True)
class Interval:
    """A score or a difference of two scores, and half the width of its 95% interval; None if no error is known."""

    value: float
    half: float | None

    @property
    def low(self) -> float | None:
        """Lower end, or None."""
        return None if self.half is None else self.value - self.half

    @property
    def high(self) -> float | None:
        """Upper end, or None."""
        return None if self.half is None else self.value + self.half

    def __str__(self) -> str:
        return f"{self.value:+.2f}" + ("" if self.half is None else f" [{self.low:+.2f}, {self.high:+.2f}]")

    def verdict(self, at_least: float) -> str:
        """Return HELD if the whole interval is at or above ``at_least``, FAILED if it is below, UNDECIDED otherwise."""
        margin = self.value - at_least
        if self.half is None or -self.half <= margin < self.half:
            return UNDECIDED
        return HELD if margin > 0 else FAILED


class SeedVariance(NamedTuple):
    """Variance of a score over the seeds, and the degrees of freedom of that estimate."""

    variance: float
    freedom: int


def pooled(runs: Sequence[Run]) -> SeedVariance | None:
    """Pool the variances over the seeds of all runs with several seeds; None if there is no such run."""
    several = [scores for run in runs if len(scores := run.scores(run.key)) > 1]
    freedom = sum(len(scores) - 1 for scores in several)
    if not freedom:
        return None
    return SeedVariance(sum(variance(scores) * (len(scores) - 1) for scores in several) / freedom, freedom)


def difference(run: Run, baseline: Run, seeds: SeedVariance | None) -> Interval:
    """Return the score of ``run`` minus the baseline's, or the reverse for perplexities, where lower is better.

    Args:
        run, baseline: runs scored on the same test set.
        seeds: the result of ``pooled``; without it the interval covers the choice of test sentences alone.

    Raises:
        UserError: the runs were scored on different test sets.
    """
    scores, baseline_scores = run.scores(run.key), baseline.scores(run.key)
    gain = fmean(scores) - fmean(baseline_scores)
    counts = 1 / len(scores) + 1 / len(baseline_scores)
    if run.counted is None:
        return _interval(-gain, None, seeds, counts)
    lines, baseline_lines = run.lines(), baseline.lines()
    if not lines or not baseline_lines:
        return Interval(gain, None)
    if len({len(counted) for counted in [*lines, *baseline_lines]}) > 1:
        raise UserError(f"{run.name} and {baseline.name} are scored on different test sets")
    return _interval(gain, standard_error(run.counted, lines, baseline_lines), seeds, counts)


def mean_score(run: Run, seeds: SeedVariance | None) -> Interval:
    """Return the mean score of a run over its seeds; the arguments are those of ``difference``."""
    scores, lines = run.scores(run.key), run.lines()
    if run.counted is None:
        return _interval(fmean(scores), None, seeds, 1 / len(scores))
    if not lines:
        return Interval(fmean(scores), None)
    return _interval(fmean(scores), standard_error(run.counted, lines), seeds, 1 / len(scores))


def _interval(value: float, test_set_error: float | None, seeds: SeedVariance | None, counts: float) -> Interval:
    """Combine the standard error of the test set (None if unknown) with ``counts`` times the variance of the seeds."""
    if test_set_error is None and seeds is None:
        return Interval(value, None)
    test_set_variance = (test_set_error or 0.0) ** 2
    seed_variance = seeds.variance * counts if seeds else 0.0
    freedom = seeds.freedom * (1 + test_set_variance / seed_variance) ** 2 if seeds and seed_variance else math.inf
    return Interval(value, float(student.ppf(0.975, freedom)) * math.sqrt(seed_variance + test_set_variance))


def gains(runs: Sequence[Run], baseline: Run) -> dict[str, Interval]:
    """Return the difference of each run to the baseline, by the run's name, for runs that have the baseline's score."""
    comparable = [run for run in runs if run.key == baseline.key and run.scores(run.key)]
    seeds = pooled(comparable)
    return {
        run.name: difference(run, baseline, seeds)
        for run in comparable
        if run is not baseline and baseline in comparable
    }
