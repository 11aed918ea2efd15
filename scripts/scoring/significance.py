"""Paired bootstrap resampling (Koehn, 2004): how much the difference of two systems owes to the choice of the test set.

Test sets of the same size are drawn from the sentences with replacement.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric

SAMPLES = 1000
SEED = 12345  # sacreBLEU's


def counts(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
    """The numbers that a score is made of, of each line: for BLEU lengths and matches of n-grams."""
    return [" ".join(map(str, line)) for line in metric._extract_corpus_statistics(hypotheses, [references])]


class MetricOfCounts:
    """A metric of sacreBLEU's that takes the ``counts`` of each line in place of hypothesis and references."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        metric.num_refs = 1  # which only the lines themselves would tell it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metric, name)

    def _extract_corpus_statistics(self, lines: Sequence[str], _: Any = None) -> np.ndarray:
        # as floats, whose sums BLAS makes many times as fast as those of integers; sums of counts are exact
        return np.loadtxt(lines, dtype=float, ndmin=2)

    def score(self, lines: Sequence[str]) -> Any:
        """The metric's score object for all lines."""
        return self._compute_score_from_stats(self._extract_corpus_statistics(lines).sum(axis=0))


def standard_error(
    metric: MetricOfCounts, ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]] | None = None
) -> float:
    """Return the deviation of a system's score over resamples of the test set; with ``theirs``, that of the difference
    of two systems, by paired bootstrap.

    Each system has the counted lines of one or more seeds. A sentence that is drawn brings those of all seeds, whose
    errors are alike.
    """
    drawn = np.random.default_rng(SEED).choice(len(ours[0]), size=(SAMPLES, len(ours[0])))
    times = np.array([np.bincount(some, minlength=len(some)) for some in drawn], dtype=float)

    def scores(lines_of_seeds: Sequence[Sequence[str]]) -> np.ndarray:
        of_sentences = np.sum([metric._extract_corpus_statistics(lines) for lines in lines_of_seeds], axis=0)
        return np.array([metric._compute_score_from_stats(sums).score for sums in times @ of_sentences])

    return float(np.std(scores(ours) - (0.0 if theirs is None else scores(theirs)), ddof=1))
