"""Paired bootstrap resampling (Koehn, 2004): the error of scores and differences from the choice of test sentences.

Test sets of the same size are drawn from the sentences with replacement.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric

SAMPLES = 1000
SEED = 12345  # sacreBLEU's


def counts(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
    """Return for each line the counts that a score is computed from: for BLEU lengths and matches of n-grams."""
    return [" ".join(map(str, line)) for line in metric._extract_corpus_statistics(hypotheses, [references])]


class MetricOfCounts:
    """A metric of sacreBLEU that takes the ``counts`` of each line in place of hypothesis and references."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        metric.num_refs = 1  # sacreBLEU sets it from the references, which are not here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metric, name)

    def _extract_corpus_statistics(self, lines: Sequence[str], _: Any = None) -> np.ndarray:
        # as floats, because BLAS multiplies them much faster than integers; sums of counts stay exact
        return np.loadtxt(lines, dtype=float, ndmin=2)

    def score(self, lines: Sequence[str]) -> Any:
        """Return the metric's score object for all lines."""
        return self._compute_score_from_stats(self._extract_corpus_statistics(lines).sum(axis=0))


def standard_error(
    metric: MetricOfCounts, ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]] | None = None
) -> float:
    """Return the standard deviation of a score over resampled test sets.

    Args:
        metric: computes the score from counts.
        ours: the counted lines of a system, for each of its seeds.
        theirs: those of another system; the deviation is then that of the difference, by paired bootstrap.

    A drawn sentence brings the lines of all seeds of a system, because their errors are correlated.
    """
    drawn = np.random.default_rng(SEED).choice(len(ours[0]), size=(SAMPLES, len(ours[0])))
    times = np.array([np.bincount(sample, minlength=len(sample)) for sample in drawn], dtype=float)

    def scores(lines_of_seeds: Sequence[Sequence[str]]) -> np.ndarray:
        of_sentences = np.sum([metric._extract_corpus_statistics(lines) for lines in lines_of_seeds], axis=0)
        return np.array([metric._compute_score_from_stats(sums).score for sums in times @ of_sentences])

    return float(np.std(scores(ours) - (0.0 if theirs is None else scores(theirs)), ddof=1))
