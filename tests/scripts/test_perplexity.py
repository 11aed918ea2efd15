import math

import pytest

from scripts.common.errors import UserError
from scripts.scoring.perplexity import EvaluationOutput, scores

ENDING = ["x:Evaluated 1,234 tokens in 2.0s (617.00 tokens/s)", "x:Loss (base 2): 2.0000, Perplexity: 4.00"]


def collect(lines: list[str], units: str | None = None) -> EvaluationOutput:
    output = EvaluationOutput(units)
    for line in lines:
        output.read(line)
    return output


def perplexities(lines: list[str]) -> list[float]:
    return [sentence.perplexity for sentence in collect(lines + ENDING).sentences()]


def test_each_sentence_has_a_perplexity_in_the_order_of_the_corpus():
    """Half of one, a quarter of the other: perplexities of 2 and 4, whichever comes first and in either form of log."""
    half, quarter = math.log(0.5), math.log(0.25)
    lines = [
        f"2026 | INFO | fairseq_cli.eval_lm | 1 a [{quarter:.6f}]\t[ [{quarter:.6f}]\t</s> [{quarter:.6f}]",
        f"INFO:fairseq_cli.eval_lm:0 b [{half:.6f}]\t</s> [{half:.6f}]",
        "INFO:fairseq_cli.eval_lm:{'_name': None, 'a': [1]}",
    ]
    output = collect(lines + ENDING)
    assert perplexities(lines) == pytest.approx([2, 4], rel=1e-5)
    assert output.facts["tokens"] == 1234
    found = scores(output)
    assert found["perplexity"] == 4.0  # as fairseq-eval-lm prints it: over words
    assert found["perplexity_sentence"] == pytest.approx(math.sqrt(8), rel=1e-5)


def test_a_block_that_holds_several_sentences_is_parted_and_one_may_go_on_in_the_next():
    lines = [
        "x | fairseq_cli.eval_lm | 0 a [-1.0]\t</s> [-1.0]\tb [-2.0]",
        "x | fairseq_cli.eval_lm | 1 c [-2.0]\t</s> [-2.0]",
    ]
    assert perplexities(lines) == pytest.approx([math.e, math.e**2])


def test_the_end_of_a_sentence_counts():
    line = "x | fairseq_cli.eval_lm | 0 a [-1.0]\t</s> [-3.0]"
    assert perplexities([line]) == pytest.approx([math.e**2])


@pytest.mark.parametrize(
    ("units", "line"),
    [("subword_nmt", "na@@ i@@ ve a"), ("sentencepiece", "\u2581na i ve \u2581a"), ("@@ ", "na@@ i@@ ve a")],
)
def test_a_perplexity_is_of_words_and_that_of_their_units_stands_beside_it(units, line):
    """Four units and the end are three words, the end among them: a word has 5/3 bits."""
    printed = "\t".join(f"{unit} [{math.log(0.5):.6f}]" for unit in [*line.split(), "</s>"])
    output = collect([f"x | fairseq_cli.eval_lm | 0 {printed}", *ENDING], units)
    [sentence] = output.sentences()
    assert (sentence.units, sentence.words) == (5, 3)
    of_a_word = pytest.approx(2 ** (5 / 3), rel=1e-5)
    assert scores(output) == {"perplexity": of_a_word, "perplexity_unit": 4.0, "perplexity_sentence": of_a_word}
    assert "perplexity_unit" not in scores(collect([f"x | fairseq_cli.eval_lm | 0 {printed}", *ENDING]))


@pytest.mark.parametrize("lines", [[], ENDING, ["x | fairseq_cli.eval_lm | 0 a [-1.0]\t</s> [-1.0]"]])
def test_output_that_breaks_off_is_refused(lines):
    with pytest.raises(UserError, match="did not report a perplexity"):
        collect(lines).sentences()
