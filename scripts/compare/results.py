"""Differences of models with their intervals, and verdicts on claims.

The interval of a difference has two parts, as of independent errors: the test set's, by paired bootstrap, and the
seeds', by one deviation, pooled over the models of several seeds. That is a rough estimate from few seeds, so the
interval is Student's, with Satterthwaite's degrees of freedom.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy.stats import t as student

from scripts.common.errors import UserError
from scripts.compare.plan import Claim, Run
from scripts.scoring.significance import standard_error

HELD, FAILED, UNDECIDED, ABSENT = "held", "did not hold", "cannot be told at this size", "not run"


@dataclass(frozen=True)
class Interval:
    """A figure and the 95% interval about it; ``low`` is None where nothing tells how sure it is."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:+.2f}" + ("" if self.low is None else f" [{self.low:+.2f}, {self.high:+.2f}]")

    def verdict(self, at_least: float) -> str:
        """Return whether the figure is at least so much."""
        if self.low is None or self.high is None or self.low < at_least <= self.high:
            return UNDECIDED
        return HELD if self.low >= at_least else FAILED


def pooled(runs: Sequence[Run]) -> tuple[float, int] | None:
    """The variance of a score over the seeds and its degrees of freedom, of the runs of several seeds, if any."""
    several = [scores for run in runs if len(scores := run.scores(run.key)) > 1]
    freedom = sum(len(scores) - 1 for scores in several)
    return (sum(variance(scores) * (len(scores) - 1) for scores in several) / freedom, freedom) if freedom else None


def difference(run: Run, other: Run, seeds: tuple[float, int] | None) -> Interval:
    """The score of a run minus that of another; of perplexities, of which less is better, the other way round.

    Args:
        seeds: what ``pooled`` says; without it the interval is the test set's alone.

    Raises:
        UserError: the runs are of other test sets.
    """
    one, two = run.scores(run.key), other.scores(run.key)
    value, of_lines, of_seeds = fmean(one) - fmean(two), 0.0, 0.0
    ours, theirs = run.lines(), other.lines()
    if run.counted is None:
        value = -value
    elif ours and theirs:
        if {len(lines) for lines in [*ours, *theirs]} != {len(ours[0])}:
            raise UserError(f"{run.name} and {other.name} are scored on other test sets")
        of_lines = standard_error(run.counted, ours, theirs) ** 2
    if seeds:
        of_seeds = seeds[0] * (1 / len(one) + 1 / len(two))
    if not (seeds if run.counted is None else ours and theirs):
        return Interval(value, None, None)
    freedom = seeds[1] * (1 + of_lines / of_seeds) ** 2 if seeds and of_seeds else math.inf
    half = float(student.ppf(0.975, freedom)) * math.sqrt(of_seeds + of_lines)
    return Interval(value, value - half, value + half)


def gains(runs: Sequence[Run], baseline: Run) -> tuple[dict[str, Interval], str]:
    """Return the differences to the baseline by the names of the runs that have one, and a sentence on chance."""
    alike = [run for run in runs if run.key == baseline.key and run.scores(run.key)]
    seeds = pooled(alike)
    found = {run.name: difference(run, baseline, seeds) for run in alike if run is not baseline and baseline in alike}
    halves = [gain.high - gain.value for gain in found.values() if gain.high is not None]
    if not halves or not baseline.lines():
        return found, ""
    alone = "" if seeds else " (of the lines alone: no model has several seeds)"
    return found, f"{len(baseline.lines()[0]):,} lines: differences below {max(halves):.2f} are chance{alone}."


def judge(claim: Claim, runs: Mapping[str, Run], seeds: tuple[float, int] | None) -> tuple[str, str]:
    """Return the verdict on a claim, and the figure or the reason that it rests on."""
    if not {claim.model, claim.than} <= runs.keys():
        return ABSENT, ""
    model, than = runs[claim.model], runs[claim.than]
    if diverged := [run for run in (model, than) if run.diverged]:
        verdict = UNDECIDED if len(diverged) == 2 else HELD if diverged == [than] else FAILED
        return verdict, " and ".join(f"{run.name} diverged with seed {', '.join(run.diverged)}" for run in diverged)
    if not (model.scores(model.key) and than.scores(model.key)):
        return ABSENT, ""
    figure = difference(model, than, seeds)
    if seeds is None or figure.low is None:
        return UNDECIDED, f"{figure}, and no run has several seeds, or one no counts of its lines"
    return figure.verdict(claim.at_least), str(figure)
