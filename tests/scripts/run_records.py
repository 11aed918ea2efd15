"""Make run records in the form that scripts.reproduce writes."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any


def summary(figures: list[float], best: int = 0) -> dict[str, Any]:
    """Return the mean, the standard deviation and the best seed's score."""
    deviation = stdev(figures) if len(figures) > 1 else None
    return {"mean": fmean(figures), "std": deviation, "n": len(figures), "best": figures[best]}


def record(
    model: str,
    dataset: str = "toy",
    *,
    metric: str = "bleu",
    valid: Mapping[str, list[float]] | None = None,
    test: Mapping[str, list[float]] | None = None,
    best: int = 0,
    **over: Any,
) -> dict[str, Any]:
    """Return a record with each seed's scores, by score; ``over`` replaces whole entries."""
    valid, test = valid or {}, test or {}
    count = max((len(figures) for figures in (*valid.values(), *test.values())), default=0)
    seeds = {
        str(n + 1): {
            "training": {"seconds": 10.0, "tokens_per_second": 5000, "updates": 100},
            "valid": {key: figures[n] for key, figures in valid.items()},
            "generation": {"sentences_per_second": 12.345} if metric != "perplexity" else None,
            "test": {key: figures[n] for key, figures in test.items()}
            | {"signature": f"beam:5|seed:{n + 1}", "details": {key: {"signature": f"how:{key}"} for key in test}},
        }
        for n in range(count)
    }
    made = {
        "model": model,
        "dataset": dataset,
        "config": {
            "dataset": dataset,
            "seeds": list(range(1, count + 1)),
            "train": {"arch": f"pla_{model}", "lr": 0.001},
            "score": {"metric": metric},
        },
        "parameters": 1234567,
        "backend": {"dynamic_conv": "native"},
        "seeds": seeds,
        "best_seed": best + 1 if count else None,
        "summary": {
            "valid": {key: summary(figures, best) for key, figures in valid.items()},
            "test": {key: summary(figures, best) for key, figures in test.items()},
        },
        "speed": None,
    }
    return made | over


def speed(sentences: float, ratio: float | None = None, baseline: str = "transformer") -> dict[str, Any]:
    """Return the results of the stage speed for three runs; with ``ratio``, compared with a baseline."""
    return {
        "sentences_per_second": {"mean": sentences, "std": 0.4},
        "tokens_per_second": {"mean": 27 * sentences, "std": 9.0},
        "trained": True,
        "baseline": None if ratio is None else {"model": baseline},
        "ratio": ratio,
        "settings": {"beam": 4, "batch-size": 256, "fixed_length": None},
    }


def write(work: Path, content: Mapping[str, Any]) -> Path:
    """Write a record where its run would write it; return the path."""
    path = work / content["dataset"] / content["model"] / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
