"""The best seed of a configuration by validation, and means and deviations over its seeds."""

import statistics
from collections.abc import Mapping
from typing import Any

from scripts.scoring.score_names import KEYS


def goodness(metric: str, scores: Mapping[str, Any]) -> float:
    """Return what a model is chosen by: the BLEU that ``metric`` names, the mean of ROUGE-1, 2 and L (the paper favours
    none of them), or the perplexity with its sign turned, so that more is better.
    """
    if metric == "rouge":
        return statistics.fmean(scores[key] for key in KEYS["rouge"])
    return -scores["perplexity"] if metric == "perplexity" else float(scores[metric])


def numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a scores.json without what is beside them."""
    return {key: value for key, value in scores.items() if isinstance(value, int | float)}


def summarise(metric: str, seeds: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """``best_seed``, and under ``summary`` each score's mean, deviation, number of seeds and the best seed's figure.

    Args:
        metric: a configuration's ``score.metric``.
        seeds: for each seed ``valid`` and ``test``, the content of scores.json or None. Seeds without a test score are
            left out; a seed that is alone needs no validation.
    """
    scored = {seed: facts for seed, facts in seeds.items() if facts["test"]}
    judged = {seed: goodness(metric, facts["valid"]) for seed, facts in scored.items() if facts["valid"]}
    best = next(iter(scored), None) if len(scored) < 2 else max(judged, key=lambda seed: judged[seed], default=None)
    summary: dict[str, Any] = {}
    for subset in ("valid", "test"):
        found = {seed: numbers(facts[subset]) for seed, facts in scored.items() if facts[subset]}
        best_scores = found.get(best, {})
        summary[subset] = {
            key: over([scores[key] for scores in found.values()]) | {"best": best_scores.get(key)}
            for key in next(iter(found.values()), {})
            if all(key in scores for scores in found.values())
        }
    return {"best_seed": best, "summary": summary}


def over(values: list[float]) -> dict[str, Any]:
    """Mean, deviation and number of the seeds' figures."""
    deviation = statistics.stdev(values) if len(values) > 1 else None  # of a sample, as the paper's ± is understood
    return {"mean": statistics.fmean(values), "std": deviation, "n": len(values)}
