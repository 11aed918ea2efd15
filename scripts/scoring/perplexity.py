"""Read the output of fairseq-eval-lm: the perplexity of a subword as it prints it, and that of a word."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.process import run_logged
from data_prep.common.progress import measured_progress

_SAMPLE = re.compile(r"fairseq_cli\.eval_lm(?: \| |:)\d+ (.+ \[-?[\w.]+\])$")  # the log has one of two forms
_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens in ([\d.]+)s \(([\d.]+) tokens/s\)")
_RESULT = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)")
# by fairseq's --post-process: True for exactly one of the subwords of a word, and for the end of a line
_WORDS: dict[str | None, Callable[[str], bool]] = {
    None: lambda unit: True,
    "subword_nmt": lambda unit: not unit.endswith("@@"),
    "sentencepiece": lambda unit: unit.startswith("\u2581") or unit == "</s>",
}


class EvaluationOutput:
    """The results that fairseq-eval-lm prints with --output-word-probs, collected line by line.

    Args:
        units: the kind of subwords, as fairseq's --post-process names it; None for whole words.
    """

    def __init__(self, units: str | None = None) -> None:
        self._is_word = _WORDS[units]
        self.facts: dict[str, Any] = {}
        self.samples = self.units = self.words = 0
        self.log_probability = 0.0

    def read(self, line: str) -> None:
        """Read one line."""
        if match := _SAMPLE.search(line):
            self.samples += 1
            for item in match[1].split("\t"):
                unit, _, value = item.rpartition(" [")
                self.units += 1
                self.words += self._is_word(unit)
                self.log_probability += float(value.rstrip("]"))
        elif match := _TOKENS.search(line):
            self.facts |= {
                "tokens": int(match[1].replace(",", "")),
                "seconds": float(match[2]),
                "tokens_per_second": float(match[3]),
            }
        elif match := _RESULT.search(line):
            self.facts |= {"loss_base2": float(match[1]), "perplexity": float(match[2])}


def run_evaluation(command: Sequence[str], log: Path, units: str | None) -> EvaluationOutput:
    """Run a command of fairseq-eval-lm and write its output to ``log``.

    Args:
        command: the command.
        log: the file.
        units: the kind of subwords, as fairseq's --post-process names it; None for whole words.

    Raises:
        UserError: the command failed.
    """
    output = EvaluationOutput(units)
    with measured_progress("evaluating", lambda: (output.samples, None), "samples"):
        run_logged(command, log, output.read, what="fairseq-eval-lm")
    return output


def scores(output: EvaluationOutput) -> dict[str, float]:
    """Return ``perplexity`` of a word, and ``perplexity_unit`` of a subword if words are cut into subwords.

    The end of a sentence counts as a word. For whole words the perplexity is the one that fairseq-eval-lm prints.
    """
    printed = output.facts["perplexity"]
    if output.units == output.words:
        return {"perplexity": printed}
    return {"perplexity": math.exp(-output.log_probability / output.words), "perplexity_unit": printed}
