"""Paired bootstrap resampling, which tells whether a system is better than a baseline or was lucky with the test set.

Koehn (2004), as sacreBLEU does it: 1,000 test sets of the same size are drawn from the sentences with replacement, and
p is the share of them in which the difference strays from its mean by more than what was measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from scripts.scoring.metrics import Measure, Side, check_sides

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


def paired_bootstrap(
    found: Mapping[str, Measure], hypotheses: Side, baseline: Side, references: Side
) -> dict[str, dict[str, Any]]:
    """For each measure that there are lines for: both scores with half their 95% interval, and p of the difference.

    The resamples are the same in every call (sacreBLEU's seed, 12345 or SACREBLEU_SEED).

    Raises:
        UserError: unequal numbers of lines, or none.
    """
    results = {}
    for key, measure in found.items():
        ours, theirs, reference = (measure.view(side) for side in (hypotheses, baseline, references))
        if ours is None or theirs is None or reference is None:
            continue
        check_sides(ours, reference)
        check_sides(theirs, reference)
        systems: list[tuple[str, Sequence[str]]] = [("baseline", list(theirs)), ("system", list(ours))]
        test = PairedTest(systems, {"score": measure.metric}, [list(reference)], test_type="bs", n_samples=SAMPLES)
        signatures, scores = cast(Any, test())
        [(name, signature)] = signatures.items()
        before, after = scores[name]
        results[key] = {
            "score": after.score,
            "baseline": before.score,
            "difference": after.score - before.score,
            # sacreBLEU counts the resamples that stray further, of which equal systems have none
            "p": after.p_value if after.score != before.score else 1.0,
            "ci": float(after.ci),
            "baseline_ci": float(before.ci),
            "signature": str(signature),
        }
    return results


def standard_error(metric: MetricOfCounts, ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]]) -> float:
    """Return the deviation of the difference of two systems over resamples of the test set, by paired bootstrap.

    Each system has the counted lines of one or more seeds. A sentence that is drawn brings those of all seeds, whose
    errors are alike.
    """
    drawn = np.random.default_rng(SEED).choice(len(ours[0]), size=(SAMPLES, len(ours[0])))
    times = np.array([np.bincount(some, minlength=len(some)) for some in drawn], dtype=float)
    scores = []
    for side in (ours, theirs):
        of_sentences = np.sum([metric._extract_corpus_statistics(lines) for lines in side], axis=0)
        scores.append([metric._compute_score_from_stats(each).score for each in times @ of_sentences])
    return float(np.std(np.diff(scores, axis=0), ddof=1))
