"""Translate a subset of binarised data with a trained model, through fairseq-generate.

DIR gets generate.log (all that fairseq said), hypotheses.tok, reference.tok and source.tok (tokenised, in the order
of the corpus) and generation.json with the speed that fairseq measured and the BLEU that it computed.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.config import Config, flags, load_config
from scripts.common.errors import UserError, run_command
from scripts.common.fairseq import check_binarised, check_path, device_flags, user_dir
from scripts.common.files import write_json, write_lines
from scripts.common.process import interruptible, python_module, run_logged
from scripts.common.terminal import StatusLine

FILES = {"H": "hypotheses.tok", "T": "reference.tok", "S": "source.tok"}
# fairseq leaves out the last sentences of a subset, without a word, where they do not fill a batch of a multiple of 8.
DEFAULTS = {"gen-subset": "test", "required-batch-size-multiple": 1}
# the plugin's tasks that give the same translations in less time
FASTER_TASKS = {"translation": "pla_translation"}
_SENTENCE = re.compile(r"([STH])-(\d+)\t(.*)")
_LOADED = re.compile(r"loaded ([\d,]+) examples from: .*/([^/.]+)\.[^/]+$")
_SPEED = re.compile(
    r"Translated ([\d,]+) sentences \(([\d,]+) tokens\) in ([\d.]+)s \(([\d.]+) sentences/s, ([\d.]+) tokens/s\)"
)
_BLEU = re.compile(r"^Generate \S+ with beam=\d+: BLEU4 = ([\d.]+)")


class GenerationOutput:
    """Collects what fairseq-generate prints, line by line."""

    def __init__(self, subset: str) -> None:
        self.subset = subset
        self.expected: int | None = None
        self.sentences: dict[str, dict[int, str]] = {kind: {} for kind in FILES}
        self.facts: dict[str, Any] = {}

    def read(self, line: str) -> None:
        """Take in one line.

        Raises:
            UserError: a sentence comes a second time.
        """
        if found := _SENTENCE.fullmatch(line):
            kind, number, text = found[1], int(found[2]), found[3]
            if kind == "H":
                text = text.partition("\t")[2]  # the score stands before the text
            if number in self.sentences[kind]:
                raise UserError(f"fairseq-generate gave sentence {kind}-{number} twice; expected each exactly once")
            self.sentences[kind][number] = text
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

    def in_corpus_order(self) -> dict[str, list[str]]:
        """The lines of each file, by its name.

        Raises:
            UserError: a sentence is missing, or fairseq did not come to its end.
        """
        if "sentences" not in self.facts or self.expected is None:
            raise UserError(f"fairseq-generate did not report on the subset `{self.subset}` to the end; see its log")
        lines = {}
        for kind, name in FILES.items():
            texts = self.sentences[kind]
            missing = sorted(set(range(self.expected)) - texts.keys())
            if missing or len(texts) != self.expected:
                raise UserError(
                    f"fairseq-generate gave {len(texts)} of the {self.expected} {kind}- lines of `{self.subset}`"
                    + (f"; the first missing is {kind}-{missing[0]}" if missing else "")
                    + "; every sentence must be translated: take skip-invalid-size-inputs-valid-test and "
                    "required-batch-size-multiple out of the section generate; the subset must have both languages"
                )
            lines[name] = [texts[number] for number in range(self.expected)]
        return lines


def command(config: Config, data: Path, model: Path) -> list[str]:
    """The fairseq-generate command of a configuration."""
    task = config.train.get("task", "translation")
    return [
        *python_module("fairseq_cli.generate"),
        str(data.resolve()),
        f"--user-dir={user_dir()}",
        f"--path={model.resolve()}",
        f"--seed={config.seed}",
        "--log-format=none",
        *flags(DEFAULTS | {"task": FASTER_TASKS.get(task, task)} | config.generate),
        *device_flags(config.generate),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="BINARISED", help="what data_prep/binarise.py wrote"
    )
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for the translations")
    arguments = parser.parse_args()
    interruptible()
    config = load_config(arguments.config)
    check_binarised(arguments.data)
    if not arguments.model.is_file():
        raise UserError(f"no model {arguments.model}; expected a checkpoint that scripts/train.py or average.py wrote")
    check_path(arguments.model)

    facts_file = arguments.out / "generation.json"
    facts_file.unlink(missing_ok=True)  # it stands for a complete folder
    output = GenerationOutput(config.generate.get("gen-subset", "test"))
    status = StatusLine()

    def on_line(line: str) -> None:
        output.read(line)
        done = len(output.sentences["H"])
        if line.startswith("H-") and done % 50 == 0:
            status.update(f"translated {done:,}/{output.expected or 0:,} sentences")

    log = arguments.out / "generate.log"
    run_logged(command(config, arguments.data, arguments.model), log, on_line, what="fairseq-generate")
    status.close()
    for name, lines in output.in_corpus_order().items():
        write_lines(arguments.out / name, lines)
    write_json(facts_file, output.facts)
    facts = output.facts
    print(
        f"translated {facts['sentences']:,} sentences in {facts['seconds']:.1f} s "
        f"({facts['sentences_per_second']:.1f} sentences/s, {facts['tokens_per_second']:.0f} tokens/s)"
    )


if __name__ == "__main__":
    run_command(main)
