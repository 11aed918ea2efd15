import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.scoring.selection import summarise

figures = st.floats(0.1, 100)
METRICS = {  # functions that make a seed's scores from a number: the higher, the better the seed
    "bleu": lambda figure: {"bleu": figure, "sacrebleu": 100 - figure},
    "sacrebleu": lambda figure: {"bleu": 100 - figure, "sacrebleu": figure},
    "rouge": lambda figure: {"rouge1": 2 * figure, "rouge2": 0.0, "rougeL": figure},
    "perplexity": lambda figure: {"perplexity": 100 - figure},
}


@given(st.sampled_from([*METRICS]), st.dictionaries(st.integers(1, 9), st.tuples(figures, figures), min_size=2))
def test_the_best_seed_on_validation_gives_the_test_score(metric, seeds):
    scores = METRICS[metric]
    facts = {n: {"valid": scores(valid), "test": scores(test) | {"details": {}}} for n, (valid, test) in seeds.items()}
    chosen = summarise(metric, facts | {10: {"valid": None, "test": None}})
    best = chosen["best_seed"]
    assert seeds[best][0] == pytest.approx(max(valid for valid, _ in seeds.values()))
    assert chosen["summary"]["test"].keys() == scores(0.1).keys()
    for key, over in chosen["summary"]["test"].items():
        tests = [scores(test)[key] for _, test in seeds.values()]
        expected = {"mean": statistics.fmean(tests), "std": statistics.stdev(tests), "n": len(seeds)}
        assert over == pytest.approx(expected | {"best": scores(seeds[best][1])[key]})


def test_a_single_seed_needs_no_validation():
    unscored = {"valid": None, "test": None}
    chosen = summarise("bleu", {1: unscored, 2: {"valid": {}, "test": {"bleu": 3.0}}})
    assert chosen["best_seed"] == 2
    assert chosen["summary"]["test"]["bleu"] == {"mean": 3.0, "std": None, "n": 1, "best": 3.0}
    assert summarise("bleu", {1: unscored}) == {"best_seed": None, "summary": {"valid": {}, "test": {}}}
