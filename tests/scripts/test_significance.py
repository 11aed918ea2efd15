import math

import pytest

from scripts.common.errors import UserError
from scripts.scoring.metrics import Side, measures
from scripts.scoring.significance import paired_bootstrap

REFERENCES = [f"line {number} says that the cat number {number} sat on a mat" for number in range(60)]


def side(*spoilt):
    """The references with a word changed in the lines of a range."""
    lines = [
        line.replace("that", "why") if number in range(*spoilt) else line for number, line in enumerate(REFERENCES)
    ]
    return Side(lines, lines)


@pytest.mark.parametrize(("kind", "key"), [("bleu", "bleu"), ("bleu", "chrf"), ("bleu", "ter"), ("rouge", "rougeL")])
def test_a_large_difference_is_no_luck_and_a_small_one_may_be(kind, key):
    found = {key: measures({"metric": kind}, "en")[key]}
    [large] = paired_bootstrap(found, side(5), side(5, 60), side(0)).values()
    [small] = paired_bootstrap(found, side(30), side(29, 60), side(0)).values()
    assert large["p"] < 0.01 < 0.2 < small["p"]
    assert abs(large["difference"]) > abs(small["difference"]) > 0
    assert large["difference"] == pytest.approx(large["score"] - large["baseline"])
    assert (large["difference"] < 0) is (key == "ter")
    assert "bs:1000|seed:12345" in large["signature"]
    [none] = paired_bootstrap(found, side(30), side(30), side(0)).values()
    assert (none["difference"], none["p"]) == (0, 1)
    assert paired_bootstrap(found, side(30), side(29, 60), side(0)) == {key: small}  # the same resamples


def test_half_the_interval_is_twice_the_standard_error():
    """ROUGE-1 of a document is 100 or 100 * 11/12 here, half of each: its mean over 60 varies by what theory says."""
    found = {"rouge1": measures({"metric": "rouge"}, "en")["rouge1"]}
    [result] = paired_bootstrap(found, side(30), side(0), side(0)).values()
    words = len(REFERENCES[0].split())
    expected = 1.96 * (100 / words / 2) / math.sqrt(60)
    assert result["score"] == pytest.approx(100 - 100 / words / 2, abs=1e-4)
    assert result["ci"] == pytest.approx(expected, rel=0.1)
    assert result["baseline_ci"] == pytest.approx(0, abs=1e-4)


def test_a_baseline_of_another_length_is_refused():
    with pytest.raises(UserError, match="1 hypotheses and 60 references"):
        paired_bootstrap(measures({}, "en"), side(1), Side(["a"], ["a"]), side(0))
