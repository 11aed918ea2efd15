"""The output of fairseq-eval-lm: the perplexity of words as it prints it, and that of each sentence."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.common.errors import UserError
from scripts.common.process import run_logged
from scripts.common.terminal import StatusLine

_SAMPLE = re.compile(r"fairseq_cli\.eval_lm(?: \| |:)(\d+) (.+ \[-?[\w.]+\])$")  # the log has one of two forms
_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens in ([\d.]+)s \(([\d.]+) tokens/s\)")
_RESULT = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)")
_END = "</s>"


class EvaluationOutput:
    """Collects what fairseq-eval-lm prints with --output-word-probs, line by line."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self._samples: dict[int, list[tuple[str, float]]] = {}

    def read(self, line: str) -> None:
        """Take in one line."""
        if found := _SAMPLE.search(line):
            items = [item.rpartition(" [") for item in found[2].split("\t")]
            self._samples[int(found[1])] = [(word, float(value.rstrip("]"))) for word, _, value in items]
        elif found := _TOKENS.search(line):
            self.facts |= {
                "tokens": int(found[1].replace(",", "")),
                "seconds": float(found[2]),
                "tokens_per_second": float(found[3]),
            }
        elif found := _RESULT.search(line):
            self.facts |= {"loss_base2": float(found[1]), "perplexity": float(found[2])}

    def sentences(self) -> list[float]:
        """The perplexity of each sentence, its end included, in the order of the corpus."""
        if "perplexity" not in self.facts or not self._samples:
            raise UserError("fairseq-eval-lm did not report a perplexity; see its log")
        found, current = [], []
        for number in sorted(self._samples):  # a sample is a sentence, or a block that holds several
            for word, log_probability in self._samples[number]:
                current.append(log_probability)
                if word == _END:
                    found.append(math.exp(-fmean(current)))
                    current = []
        return found


def run_evaluation(command: Sequence[str], log: Path) -> EvaluationOutput:
    """Run a command of fairseq-eval-lm; everything it says is kept in ``log``.

    Raises:
        UserError: it failed, or did not come to its end.
    """
    output = EvaluationOutput()
    status = StatusLine()
    done = 0

    def on_line(line: str) -> None:
        nonlocal done
        output.read(line)
        done += 1
        if done % 100 == 0:
            status.update(f"evaluated about {done:,} samples")

    run_logged(command, log, on_line, what="fairseq-eval-lm")
    status.close()
    output.sentences()
    return output


def scores(output: EvaluationOutput) -> dict[str, float]:
    """``perplexity``: of a word (or what the dictionary has for words), as fairseq-eval-lm prints it.
    ``perplexity_sentence``: every sentence counts the same, however long: exp of the mean over the sentences of the
    negative log-probability of their words.
    """
    logs = [math.log(value) for value in output.sentences()]
    return {"perplexity": output.facts["perplexity"], "perplexity_sentence": math.exp(fmean(logs))}
