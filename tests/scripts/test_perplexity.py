import math

import pytest

from scripts.scoring.perplexity import EvaluationOutput, scores

ENDING = ["x:Evaluated 1,234 tokens in 2.0s (617.00 tokens/s)", "x:Loss (base 2): 2.0000, Perplexity: 4.00"]
HALF = math.log(0.5)


@pytest.mark.parametrize("start", ["2026 | INFO | fairseq_cli.eval_lm | 1 ", "INFO:fairseq_cli.eval_lm:1 "])
@pytest.mark.parametrize(
    ("units", "line"),
    [
        ("subword_nmt", "na@@ i@@ ve a </s>"),
        ("sentencepiece", "\u2581na i ve \u2581a </s>"),
        (None, "na i [ve a </s>"),
    ],
)
def test_perplexity_per_word_and_per_subword(start, units, line):
    """Four subwords and the end symbol, of 1 bit each, are three words with the end symbol: 5/3 bits per word."""
    output = EvaluationOutput(units)
    probable = "\t".join(f"{unit} [{HALF:.6f}]" for unit in line.split())
    for printed in ("INFO:fairseq_cli.eval_lm:{'_name': None, 'a': [1]}", f"{start}{probable}", *ENDING):
        output.read(printed)
    assert (output.samples, output.units, output.words, output.facts["tokens"]) == (1, 5, 3 if units else 5, 1234)
    of_words = {"perplexity": pytest.approx(2 ** (5 / 3), rel=1e-5), "perplexity_unit": 4.0}
    assert scores(output) == (of_words if units else {"perplexity": 4.0})
