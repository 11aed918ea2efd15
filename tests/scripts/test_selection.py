import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.scoring.selection import goodness, summarise

figures = st.floats(0, 100)


def facts(valid: dict | None, test: dict | None) -> dict:
    return {"valid": valid, "test": test}


@given(st.dictionaries(st.integers(1, 9), st.tuples(figures, figures), min_size=2))
def test_the_best_seed_on_validation_gives_the_figure_on_test(seeds):
    found = summarise("bleu", {seed: facts({"bleu": v}, {"bleu": t, "details": {}}) for seed, (v, t) in seeds.items()})
    best = found["best_seed"]
    assert seeds[best][0] == max(valid for valid, _ in seeds.values())
    over = found["summary"]["test"]["bleu"]
    tests = [test for _, test in seeds.values()]
    assert over["best"] == seeds[best][1]
    assert over["n"] == len(seeds)
    assert over["mean"] == pytest.approx(statistics.fmean(tests))
    assert over["std"] == pytest.approx(statistics.stdev(tests))
    assert found["summary"]["test"].keys() == {"bleu"}


def test_what_models_are_chosen_by():
    assert goodness("bleu", {"bleu": 20.0, "sacrebleu": 30.0}) == 20.0
    assert goodness("sacrebleu", {"bleu": 20.0, "sacrebleu": 30.0}) == 30.0
    assert goodness("rouge", {"rouge1": 30.0, "rouge2": 10.0, "rougeL": 20.0}) == 20.0
    assert goodness("perplexity", {"perplexity": 20.0}) > goodness("perplexity", {"perplexity": 30.0})


def test_the_lowest_perplexity_is_the_best():
    seeds = {1: facts({"perplexity": 30.0}, {"perplexity": 31.0}), 2: facts({"perplexity": 20.0}, {"perplexity": 32.0})}
    assert summarise("perplexity", seeds)["best_seed"] == 2


def test_seeds_without_scores_are_left_out():
    seeds = {1: facts(None, None), 2: facts({}, {"bleu": 3.0}), 3: facts(None, None)}
    found = summarise("bleu", seeds)
    assert found["best_seed"] == 2  # alone, it needs no validation
    assert found["summary"]["test"]["bleu"] == {"mean": 3.0, "std": None, "n": 1, "best": 3.0}
    assert summarise("bleu", {1: facts(None, None)}) == {"best_seed": None, "summary": {"valid": {}, "test": {}}}
