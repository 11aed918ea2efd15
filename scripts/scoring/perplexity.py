"""The output of fairseq-eval-lm: the perplexity of a unit as it prints it, of a word, and of each sentence."""

import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.common.errors import UserError
from scripts.common.process import run_logged
from scripts.common.terminal import shown
from scripts.scoring.detokenise import unit_joiner

_SAMPLE = re.compile(r"fairseq_cli\.eval_lm(?: \| |:)(\d+) (.+ \[-?[\w.]+\])$")  # the log has one of two forms
_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens in ([\d.]+)s \(([\d.]+) tokens/s\)")
_RESULT = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)")
_END = "</s>"


@dataclass(frozen=True)
class Sentence:
    """A sentence's log-probability, and how many units and words it has; its end counts as one of each."""

    units: int
    words: int
    log_probability: float

    @property
    def perplexity(self) -> float:
        """Of a word of this sentence."""
        return math.exp(-self.log_probability / self.words)


class EvaluationOutput:
    """Collects what fairseq-eval-lm prints with --output-word-probs, line by line.

    ``units``: what words are cut into, as fairseq's --post-process names it; None for whole words.
    """

    def __init__(self, units: str | None = None) -> None:
        join = unit_joiner(units)
        if join is None:
            raise UserError(f"`generate.post-process` is {units}, expected subword_nmt or sentencepiece")
        self.units, self._join = units, join
        self.facts: dict[str, Any] = {}
        self.samples: dict[int, list[tuple[str, float]]] = {}

    def read(self, line: str) -> None:
        """Take in one line."""
        if found := _SAMPLE.search(line):
            items = [item.rpartition(" [") for item in found[2].split("\t")]
            self.samples[int(found[1])] = [(word, float(value.rstrip("]"))) for word, _, value in items]
        elif found := _TOKENS.search(line):
            self.facts |= {
                "tokens": int(found[1].replace(",", "")),
                "seconds": float(found[2]),
                "tokens_per_second": float(found[3]),
            }
        elif found := _RESULT.search(line):
            self.facts |= {"loss_base2": float(found[1]), "perplexity": float(found[2])}

    def sentences(self) -> list[Sentence]:
        """The sentences in the order of the corpus.

        Raises:
            UserError: fairseq-eval-lm did not come to its end.
        """
        if "perplexity" not in self.facts or not self.samples:
            raise UserError("fairseq-eval-lm did not report a perplexity; see its log")
        found = list[Sentence]()
        line, total = list[str](), 0.0
        for number in sorted(self.samples):  # a sample is a sentence, or a block that holds several
            for unit, log_probability in self.samples[number]:
                total += log_probability
                line.append(unit)
                if unit == _END:
                    words = self._join(" ".join(line[:-1])).split()
                    found.append(Sentence(len(line), len(words) + 1, total))
                    line, total = [], 0.0
        return found


def run_evaluation(command: Sequence[str], log: Path, units: str | None) -> EvaluationOutput:
    """Run a command of fairseq-eval-lm on text in ``units``; everything it says is kept in ``log``.

    Raises:
        UserError: it failed, or did not come to its end.
    """
    output = EvaluationOutput(units)
    with shown(lambda: f"evaluated {len(output.samples):,} samples"):
        run_logged(command, log, output.read, what="fairseq-eval-lm")
    output.sentences()
    return output


def scores(output: EvaluationOutput) -> dict[str, float]:
    """The perplexities of a text.

    ``perplexity``: of a word. Where all words are whole, that is what fairseq-eval-lm prints.
    ``perplexity_unit``: where words are cut, that of a unit, which fairseq-eval-lm prints.
    ``perplexity_sentence``: every sentence counts the same, however long: exp of the mean over the sentences of the
    negative log-probability of their words.
    """
    sentences, printed = output.sentences(), output.facts["perplexity"]
    units, words, log_probability = (sum(column) for column in zip(*map(astuple, sentences), strict=True))
    of_words = {"perplexity": printed}
    if units != words:
        of_words = {"perplexity": math.exp(-log_probability / words), "perplexity_unit": printed}
    logs = [-each.log_probability / each.words for each in sentences]
    return {**of_words, "perplexity_sentence": math.exp(fmean(logs))}
