"""Read the output of fairseq-generate, and reorder its hypotheses by another length penalty.

The length penalty does not affect fairseq's search: unfinished hypotheses are compared by the sum of their tokens'
log-probabilities. Only to order the finished ones is the sum divided by length ** penalty
(``SequenceGenerator.finalize_hypos``). So the best hypothesis for any penalty follows from all finished hypotheses and
their sums. The plugin's --stepwise-length-penalty is part of the search, which prints the scores it orders by.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import read_lines, write_json, write_lines
from data_prep.common.outputs import remove
from data_prep.common.process import run_logged
from data_prep.common.progress import measured_progress
from scripts.scoring.detokenise import unit_joiner

HYPOTHESES, REFERENCE, SOURCE, FACTS = "hypotheses.tok", "reference.tok", "source.tok", "generation.json"
LOG = "generate.log"
_LINE = re.compile(r"([STHP])-(\d+)\t(.*)")
_LOADED = re.compile(r"loaded ([\d,]+) examples from: .*/([^/.]+)\.[^/]+$")
_SPEED = re.compile(
    r"Translated ([\d,]+) sentences \(([\d,]+) tokens\) in ([\d.]+)s \(([\d.]+) sentences/s, ([\d.]+) tokens/s\)"
)
_BLEU = re.compile(r"^Generate \S+ with beam=\d+: BLEU4 = ([\d.]+)")


@dataclass
class Hypothesis:
    """One finished hypothesis: fairseq's score (base 2), its text, and its number of tokens with the end symbol."""

    score: float
    text: str
    tokens: int = 0


def best_text(hypotheses: Sequence[Hypothesis], lenpen: float) -> str:
    """Return the text that fairseq would rank first with this length penalty, from hypotheses scored with penalty 0."""
    return max(hypotheses, key=lambda hypothesis: hypothesis.score / hypothesis.tokens**lenpen).text


class GenerationOutput:
    """The content of fairseq-generate's output, collected line by line."""

    def __init__(self, subset: str) -> None:
        self.subset = subset
        self.expected: int | None = None
        self.hypotheses: dict[int, list[Hypothesis]] = {}
        self.texts: dict[str, dict[int, str]] = {"S": {}, "T": {}}
        self.facts: dict[str, Any] = {}

    def read(self, line: str) -> None:
        """Add the content of one line."""
        if match := _LINE.fullmatch(line):
            kind, number, text = match[1], int(match[2]), match[3]
            if kind == "H":
                score, _, words = text.partition("\t")
                self.hypotheses.setdefault(number, []).append(Hypothesis(float(score), words))
            elif kind == "P":  # a log-probability a token
                self.hypotheses[number][-1].tokens = len(text.split(" "))
            else:
                self.texts[kind][number] = text
        elif (match := _LOADED.search(line)) and match[2] == self.subset:
            self.expected = int(match[1].replace(",", ""))
        elif match := _SPEED.search(line):
            self.facts |= {
                "sentences": int(match[1].replace(",", "")),
                "tokens": int(match[2].replace(",", "")),
                "seconds": float(match[3]),
                "sentences_per_second": float(match[4]),
                "tokens_per_second": float(match[5]),
            }
        elif match := _BLEU.search(line):
            self.facts["fairseq_bleu"] = float(match[1])

    def complete(self) -> None:
        """Check that fairseq finished and translated every sentence."""
        if "sentences" not in self.facts or self.expected is None:
            raise UserError(f"fairseq-generate did not finish the subset `{self.subset}`; see its log")
        every = set(range(self.expected))
        for kind, numbers in (("H", self.hypotheses.keys()), *((kind, self.texts[kind].keys()) for kind in "TS")):
            missing = sorted(every - numbers)
            if missing or len(numbers) != self.expected:
                raise UserError(
                    f"fairseq-generate printed {len(numbers)} of the {self.expected} {kind}- lines of `{self.subset}`"
                    + (f"; the first missing is {kind}-{missing[0]}" if missing else "")
                    + "; every sentence must be translated: take skip-invalid-size-inputs-valid-test and "
                    "required-batch-size-multiple out of the section generate; the subset must have both languages"
                )

    def in_corpus_order(self, prepared: Mapping[str, Sequence[str]] | None = None) -> dict[str, Sequence[str]]:
        """Return the lines of each file, by its name, with the hypotheses that fairseq ranked first.

        Args:
            prepared: see ``prepared_lines``. Without it, source and references are as fairseq prints them, with <unk>
                or <<unk>> for subwords outside the dictionary.

        Raises:
            UserError: lines are missing, or ``prepared`` is another subset.
        """
        self.complete()
        numbers = range(self.expected or 0)
        for name, lines in (prepared or {}).items():
            if len(lines) != len(numbers):
                raise UserError(
                    f"{name}: `{self.subset}` has {len(lines)} lines as prepared and {len(numbers)} as binarised: "
                    "two preparations; run the stage binarise"
                )
        return {
            HYPOTHESES: [self.hypotheses[number][0].text for number in numbers],
            REFERENCE: [self.texts["T"][number] for number in numbers],
            SOURCE: [self.texts["S"][number] for number in numbers],
            **(prepared or {}),
        }


def prepared_lines(
    prepared: Path | None, subset: str, languages: tuple[str, ...], settings: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return a subset's prepared source and references, with subwords joined to words as fairseq-generate joins them.

    Args:
        prepared: the folder that data_prep.prepare wrote; None for an empty result.
        subset: valid or test.
        languages: source and target.
        settings: of fairseq-generate; ``post-process`` names the kind of subwords.
    """
    joined = unit_joiner(settings.get("post-process"))
    if prepared is None or joined is None:
        return {}
    files = zip((SOURCE, REFERENCE), languages, strict=True)
    return {name: [joined(line) for line in read_lines(prepared / f"{subset}.{language}")] for name, language in files}


def run_generation(command: Sequence[str], subset: str, log: Path, *, label: str = "") -> GenerationOutput:
    """Run fairseq-generate and show its progress; ``log`` gets its whole output.

    Raises:
        UserError: it failed or skipped sentences.
    """
    output = GenerationOutput(subset)
    with measured_progress(f"{label}translating", lambda: (len(output.hypotheses), output.expected), "sentences"):
        run_logged(command, log, output.read, what="fairseq-generate")
    output.complete()
    return output


def write_hypotheses(folder: Path, lines: Mapping[str, Sequence[str]], facts: Mapping[str, Any]) -> None:
    """Write a folder for scripts.score. The facts are written last: only a complete folder has them."""
    remove(folder / FACTS)
    for name, text in lines.items():
        write_lines(folder / name, text)
    write_json(folder / FACTS, dict(facts))
