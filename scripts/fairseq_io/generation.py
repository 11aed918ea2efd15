"""The output of fairseq-generate, read line by line, and hypotheses under another length penalty than it was run with.

The length penalty plays no part in fairseq's search: a hypothesis is as good as the sum of its words' log-probabilities
until it is finished, and only then, for the order of the finished ones, is the sum divided by length ** penalty
(``SequenceGenerator.finalize_hypos``). So a list of all that a search finished, with the sums, tells what the search
would have given with any penalty. The plugin's --stepwise-length-penalty is part of the search, which prints the scores
that it orders by.
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
from data_prep.common.terminal import shown
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
    """One finished hypothesis: fairseq's score (base 2), how many tokens it has (its end counts), and its text."""

    score: float
    text: str
    tokens: int = 0


def best_text(hypotheses: Sequence[Hypothesis], lenpen: float) -> str:
    """The text that fairseq would have put first with this length penalty, from hypotheses found with penalty 0."""
    return max(hypotheses, key=lambda hypothesis: hypothesis.score / hypothesis.tokens**lenpen).text


class GenerationOutput:
    """Collects what fairseq-generate prints, line by line."""

    def __init__(self, subset: str) -> None:
        self.subset = subset
        self.expected: int | None = None
        self.hypotheses: dict[int, list[Hypothesis]] = {}
        self.texts: dict[str, dict[int, str]] = {"S": {}, "T": {}}
        self.facts: dict[str, Any] = {}

    def read(self, line: str) -> None:
        """Take in one line."""
        if found := _LINE.fullmatch(line):
            kind, number, text = found[1], int(found[2]), found[3]
            if kind == "H":
                score, _, words = text.partition("\t")
                self.hypotheses.setdefault(number, []).append(Hypothesis(float(score), words))
            elif kind == "P":  # a log-probability a token
                self.hypotheses[number][-1].tokens = len(text.split(" "))
            else:
                self.texts[kind][number] = text
        elif (found := _LOADED.search(line)) and found[2] == self.subset:
            self.expected = int(found[1].replace(",", ""))
        elif found := _SPEED.search(line):
            self.facts |= {
                "sentences": int(found[1].replace(",", "")),
                "tokens": int(found[2].replace(",", "")),
                "seconds": float(found[3]),
                "sentences_per_second": float(found[4]),
                "tokens_per_second": float(found[5]),
            }
        elif found := _BLEU.search(line):
            self.facts["fairseq_bleu"] = float(found[1])

    def complete(self) -> None:
        """Check that fairseq came to its end and left nothing out."""
        if "sentences" not in self.facts or self.expected is None:
            raise UserError(f"fairseq-generate did not report on the subset `{self.subset}` to the end; see its log")
        every = set(range(self.expected))
        for kind, given in (("H", self.hypotheses.keys()), *((kind, self.texts[kind].keys()) for kind in "TS")):
            missing = sorted(every - given)
            if missing or len(given) != self.expected:
                raise UserError(
                    f"fairseq-generate gave {len(given)} of the {self.expected} {kind}- lines of `{self.subset}`"
                    + (f"; the first missing is {kind}-{missing[0]}" if missing else "")
                    + "; every sentence must be translated: take skip-invalid-size-inputs-valid-test and "
                    "required-batch-size-multiple out of the section generate; the subset must have both languages"
                )

    def in_corpus_order(self, prepared: Mapping[str, Sequence[str]] | None = None) -> dict[str, Sequence[str]]:
        """The lines of each file, by its name, with the hypotheses that fairseq put first.

        Args:
            prepared: see ``prepared_lines``; without it, source and references are as fairseq prints them, where a unit
                that is not in the dictionary is <unk> or <<unk>>.

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
    """Return a subset's source and references as they were prepared, units joined as fairseq-generate joins them.

    Args:
        prepared: the folder that data_prep.prepare wrote; None: nothing is known.
        languages: source and target.
        settings: of fairseq-generate; ``post-process`` says what the units are.
    """
    joined = unit_joiner(settings.get("post-process"))
    if prepared is None or joined is None:
        return {}
    files = zip((SOURCE, REFERENCE), languages, strict=True)
    return {name: [joined(line) for line in read_lines(prepared / f"{subset}.{language}")] for name, language in files}


def run_generation(command: Sequence[str], subset: str, log: Path, *, label: str = "") -> GenerationOutput:
    """Run a command of fairseq-generate with its progress shown; everything it says is kept in ``log``.

    Raises:
        UserError: it failed, or left sentences out.
    """
    output = GenerationOutput(subset)

    def progress() -> str:
        if not output.hypotheses:
            return f"{label}loading the model"
        return f"{label}translated {len(output.hypotheses):,} sentences"

    with shown(progress):
        run_logged(command, log, output.read, what="fairseq-generate")
    output.complete()
    return output


def write_hypotheses(folder: Path, lines: Mapping[str, Sequence[str]], facts: Mapping[str, Any]) -> None:
    """A folder as scripts.score reads it; the facts are written last and stand for a complete folder."""
    remove(folder / FACTS)
    for name, text in lines.items():
        write_lines(folder / name, text)
    write_json(folder / FACTS, dict(facts))
