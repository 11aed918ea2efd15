"""The output of fairseq-eval-lm: the perplexity of a unit as it prints it, and that of a word."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.process import run_logged
from data_prep.common.terminal import shown

_SAMPLE = re.compile(r"fairseq_cli\.eval_lm(?: \| |:)\d+ (.+ \[-?[\w.]+\])$")  # the log has one of two forms
_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens in ([\d.]+)s \(([\d.]+) tokens/s\)")
_RESULT = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)")
# by what words are cut into, as fairseq's --post-process names it: a word has one such unit, and so has a line's end
_WORDS: dict[str | None, Callable[[str], bool]] = {
    None: lambda unit: True,
    "subword_nmt": lambda unit: not unit.endswith("@@"),
    "sentencepiece": lambda unit: unit.startswith("\u2581") or unit == "</s>",
}


class EvaluationOutput:
    """Collects what fairseq-eval-lm prints with --output-word-probs, line by line.

    ``units``: what words are cut into, as fairseq's --post-process names it; None for whole words.
    """

    def __init__(self, units: str | None = None) -> None:
        self._is_word = _WORDS[units]
        self.facts: dict[str, Any] = {}
        self.samples = self.units = self.words = 0
        self.log_probability = 0.0

    def read(self, line: str) -> None:
        """Take in one line."""
        if found := _SAMPLE.search(line):
            self.samples += 1
            for item in found[1].split("\t"):
                unit, _, value = item.rpartition(" [")
                self.units += 1
                self.words += self._is_word(unit)
                self.log_probability += float(value.rstrip("]"))
        elif found := _TOKENS.search(line):
            self.facts |= {
                "tokens": int(found[1].replace(",", "")),
                "seconds": float(found[2]),
                "tokens_per_second": float(found[3]),
            }
        elif found := _RESULT.search(line):
            self.facts |= {"loss_base2": float(found[1]), "perplexity": float(found[2])}


def run_evaluation(command: Sequence[str], log: Path, units: str | None) -> EvaluationOutput:
    """Run a command of fairseq-eval-lm on text in ``units``; everything it says is kept in ``log``.

    Raises:
        UserError: it failed.
    """
    output = EvaluationOutput(units)
    with shown(lambda: f"evaluated {output.samples:,} samples"):
        run_logged(command, log, output.read, what="fairseq-eval-lm")
    return output


def scores(output: EvaluationOutput) -> dict[str, float]:
    """The perplexity of a word, the end of a sentence being one; where words are cut, ``perplexity_unit``, too.

    Where all words are whole, that of a word is the one that fairseq-eval-lm prints.
    """
    printed = output.facts["perplexity"]
    if output.units == output.words:
        return {"perplexity": printed}
    return {"perplexity": math.exp(-output.log_probability / output.words), "perplexity_unit": printed}
