"""Scores and differences of scores with their 95% intervals.

An interval has two parts, as of independent errors: the test set's, by paired bootstrap, and the seeds', by one
deviation, pooled over the models of several seeds. That is a rough estimate from few seeds, so the interval is
Student's, with Satterthwaite's degrees of freedom.
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

HELD, FAILED, UNDECIDED = "held", "did not hold", "cannot be told at this size"


@dataclass(frozen=True)
class Interval:
    """A score, or a difference of two, and half its 95% interval; None where nothing tells how sure it is."""

    value: float
    half: float | None

    @property
    def low(self) -> float | None:
        """The lower end."""
        return None if self.half is None else self.value - self.half

    @property
    def high(self) -> float | None:
        """The upper end."""
        return None if self.half is None else self.value + self.half

    def __str__(self) -> str:
        return f"{self.value:+.2f}" + ("" if self.half is None else f" [{self.low:+.2f}, {self.high:+.2f}]")

    def verdict(self, at_least: float) -> str:
        """Return whether the difference is at least so much."""
        margin = self.value - at_least
        if self.half is None or -self.half <= margin < self.half:
            return UNDECIDED
        return HELD if margin > 0 else FAILED


class SeedVariance(NamedTuple):
    """The variance of a score over the seeds, and its degrees of freedom."""

    variance: float
    freedom: int


def pooled(runs: Sequence[Run]) -> SeedVariance | None:
    """The variance over the seeds, one for all runs of several seeds; None if there are no such runs."""
    several = [scores for run in runs if len(scores := run.scores(run.key)) > 1]
    freedom = sum(len(scores) - 1 for scores in several)
    if not freedom:
        return None
    return SeedVariance(sum(variance(scores) * (len(scores) - 1) for scores in several) / freedom, freedom)


def difference(run: Run, baseline: Run, seeds: SeedVariance | None) -> Interval:
    """The score of a run minus the baseline's; of perplexities, of which less is better, the other way round.

    Args:
        run, baseline: of one test set.
        seeds: of ``pooled``; without it the interval is the test set's alone.

    Raises:
        UserError: the runs are of different test sets.
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
    """The mean score of a run over its seeds; the arguments are those of ``difference``."""
    scores, lines = run.scores(run.key), run.lines()
    if run.counted is None:
        return _interval(fmean(scores), None, seeds, 1 / len(scores))
    if not lines:
        return Interval(fmean(scores), None)
    return _interval(fmean(scores), standard_error(run.counted, lines), seeds, 1 / len(scores))


def _interval(value: float, test_set_error: float | None, seeds: SeedVariance | None, counts: float) -> Interval:
    """Join the error of the test set, None if it is not known, with the seeds', whose variance counts so many times."""
    if test_set_error is None and seeds is None:
        return Interval(value, None)
    test_set_variance = (test_set_error or 0.0) ** 2
    seed_variance = seeds.variance * counts if seeds else 0.0
    freedom = seeds.freedom * (1 + test_set_variance / seed_variance) ** 2 if seeds and seed_variance else math.inf
    return Interval(value, float(student.ppf(0.975, freedom)) * math.sqrt(seed_variance + test_set_variance))


def gains(runs: Sequence[Run], baseline: Run) -> dict[str, Interval]:
    """The differences to the baseline by the names of the runs that have one."""
    alike = [run for run in runs if run.key == baseline.key and run.scores(run.key)]
    seeds = pooled(alike)
    return {run.name: difference(run, baseline, seeds) for run in alike if run is not baseline and baseline in alike}
