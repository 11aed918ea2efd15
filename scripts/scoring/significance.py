"""Paired bootstrap resampling: is a system better than a baseline, or was it lucky with the test set?

Koehn (2004), as sacreBLEU does it: 1,000 test sets of the same size are drawn from the sentences with replacement, and
p is the share of them in which the difference strays from its mean by more than what was measured.
"""

from collections.abc import Mapping
from typing import Any

from sacrebleu.significance import PairedTest, Result

from scripts.scoring.metrics import Measure, Side, check_sides

SAMPLES = 1000


def paired_bootstrap(
    found: Mapping[str, Measure], hypotheses: Side, baseline: Side, references: Side, *, samples: int = SAMPLES
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
        test = PairedTest(
            [("baseline", list(theirs)), ("system", list(ours))],
            {key: measure.metric},
            [list(reference)],
            test_type="bs",
            n_samples=samples,
        )
        signatures, scores = test()
        [(name, signature)] = signatures.items()
        before, after = scores[name]
        assert isinstance(before, Result)
        assert isinstance(after, Result)
        assert before.ci is not None
        assert after.ci is not None
        results[key] = {
            "score": after.score,
            "baseline": before.score,
            "difference": after.score - before.score,
            "p": after.p_value,
            "ci": float(after.ci),
            "baseline_ci": float(before.ci),
            "signature": str(signature),
        }
    return results
