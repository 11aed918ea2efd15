"""The best seed of a configuration by validation, and means and deviations over its seeds."""

import statistics
from collections.abc import Mapping
from typing import Any

from scripts.scoring.score_names import KEYS


def goodness(metric: str, scores: Mapping[str, Any]) -> float:
    """Return the number that models are chosen by; higher is better.

    It is the BLEU score that ``metric`` names, the mean of ROUGE-1, 2 and L (the paper prefers none of them), or the
    negative perplexity.
    """
    if metric == "rouge":
        return statistics.fmean(scores[key] for key in KEYS["rouge"])
    return -scores["perplexity"] if metric == "perplexity" else float(scores[metric])


def numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of a scores.json without its other entries."""
    return {key: value for key, value in scores.items() if isinstance(value, int | float)}


def summarise(metric: str, seeds: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``best_seed``, and under ``summary`` each score's mean, deviation, number of seeds and best seed's value.

    Args:
        metric: a configuration's ``score.metric``.
        seeds: for each seed ``valid`` and ``test``, the content of scores.json or None. Seeds without test scores are
            skipped. If only one seed has test scores, it is the best and needs no validation scores.
    """
    scored = {seed: facts for seed, facts in seeds.items() if facts["test"]}
    validated = {seed: goodness(metric, facts["valid"]) for seed, facts in scored.items() if facts["valid"]}
    best = (
        next(iter(scored), None) if len(scored) < 2 else max(validated, key=lambda seed: validated[seed], default=None)
    )
    summary: dict[str, Any] = {}
    for subset in ("valid", "test"):
        of_seeds = {seed: numbers(facts[subset]) for seed, facts in scored.items() if facts[subset]}
        best_scores = of_seeds.get(best, {})
        summary[subset] = {
            key: over([scores[key] for scores in of_seeds.values()]) | {"best": best_scores.get(key)}
            for key in next(iter(of_seeds.values()), {})
            if all(key in scores for scores in of_seeds.values())
        }
    return {"best_seed": best, "summary": summary}


def over(values: list[float]) -> dict[str, Any]:
    """Return mean, standard deviation and number of the values of seeds or runs."""
    deviation = statistics.stdev(values) if len(values) > 1 else None  # of a sample, as we read the paper's ±
    return {"mean": statistics.fmean(values), "std": deviation, "n": len(values)}
