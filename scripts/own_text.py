"""Write a dataset and a configuration for two text files of which line n translates line n.

Chooses the settings by the text and the machine; a comment in the files explains every choice:

  data_prep/datasets/NAME.yaml      where the text is and how it is prepared
  configs/NAME/dynamicconv.yaml     how the model is trained

With --project DIR the files are DIR/datasets/NAME.yaml and DIR/configs/NAME/dynamicconv.yaml, results go to DIR/work,
and nothing is written to the checkout.

Then it prints the command that prepares the text, trains and scores; with --run it runs that command at once. Languages
without spaces between words (Chinese, Japanese, Thai, ...) need no other options.

example: python -m scripts.own_text manuals --src my.zh --tgt my.en --source zh --target en --run
"""

import argparse
import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file
from data_prep.dataset import LANGUAGE
from data_prep.sources.supplied import SuppliedText, check_sides
from data_prep.text.clean import count_words
from data_prep.text.writing import check_script
from scripts.fairseq_io.devices import find_devices
from scripts.reproduce import __main__ as reproduce
from scripts.reproduce.outcome import near, typed

MODEL = "dynamicconv.yaml"
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_SAMPLE = 100_000  # number of lines whose words and letters are counted
_MIN_UPDATES = 600
_CHECKPOINTS = 20  # saved by a training of any length
_SUBWORDS = {20_000: 2000, 500_000: 8000, 5_000_000: 16_000, math.inf: 32_000}  # by the largest number of pairs
_PASSES = 30  # over the text
_MAX_UPDATES = {False: 20_000, True: 100_000}  # True: on a GPU


@dataclass(frozen=True)
class Files:
    """The files that are written, and the folder of the results."""

    dataset: Path
    config: Path
    work: Path
    base_folder: str  # of the configurations to build on, for the key `base`
    dataset_value: str  # for the configuration's key `dataset`

    @classmethod
    def in_checkout(cls, name: str) -> "Files":
        dataset, config = CHECKOUT / "data_prep" / "datasets" / f"{name}.yaml", CHECKOUT / "configs" / name / MODEL
        return cls(dataset, config, CHECKOUT / "work", "../own_text", name)

    @classmethod
    def in_project(cls, name: str, folder: Path) -> "Files":
        dataset, config = folder / "datasets" / f"{name}.yaml", folder / "configs" / name / MODEL
        base_folder = str(CHECKOUT / "configs" / "own_text")
        return cls(dataset, config, folder / "work", base_folder, f"../../datasets/{name}.yaml")

    @property
    def arguments(self) -> list[str]:
        """Arguments of scripts.reproduce."""
        return [near(self.config), *([] if self.work == CHECKOUT / "work" else ["--work", near(self.work)])]

    @property
    def command(self) -> str:
        """The command that runs all stages."""
        return typed("scripts.reproduce", *self.arguments)


@dataclass
class Side:
    """Counts of one file."""

    path: Path
    language: str
    lines: int = 0  # in the whole file
    first: str = ""  # the first line that is not empty
    letters: Counter[str] = field(default_factory=Counter)  # in the sample
    words: list[int] = field(default_factory=list)  # number of words in each line of the sample, see ``count_words``


def count(path: Path, language: str) -> Side:
    """Count the lines of a file, and the words and letters of its first ``_SAMPLE`` lines.

    Raises:
        UserError: a line is not UTF-8, or the text is not in a script of its language.
    """
    side = Side(path, language)
    for line in SuppliedText(path):
        side.lines += 1
        if side.lines <= _SAMPLE:
            side.letters.update(text := line.decode())
            side.first = side.first or text.strip()
            side.words.append(count_words(text))
    check_script(language, side.letters, path)
    return side


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed; 1 if there are no values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 1.0


def max_words(source: Side, target: Side) -> int:
    """Return the largest number of words in a line that is kept: 995 of 1,000 pairs are not longer."""
    longest = quantile([float(max(pair)) for pair in zip(source.words, target.words, strict=True)], 0.995)
    return max(100, math.ceil(longest / 50) * 50)


def dataset_text(name: str, source: Side, target: Side) -> str:
    """Return the dataset's YAML."""
    pairs = source.lines
    lengths = [pair for pair in zip(source.words, target.words, strict=True) if min(pair)]
    ratio = max(2.5, math.ceil(2.5 * quantile([max(pair) / min(pair) for pair in lengths], 0.99)) / 2)
    usual_subwords = next(subwords for max_pairs, subwords in _SUBWORDS.items() if pairs <= max_pairs)
    # SentencePiece keeps the letters that make up 99.95% of the text: each is a subword beside the longer ones
    letters = len(source.letters | target.letters)
    subwords = max(usual_subwords, -(-(letters + usual_subwords // 2) // 500) * 500)
    valid, test = (2, 3) if pairs < 200_000 else (1, 1)
    paths = {f"train.{side.language}": str(side.path.absolute()) for side in (source, target)}
    files = textwrap.indent(yaml.safe_dump(paths, allow_unicode=True, sort_keys=False, width=math.inf), "  ").rstrip()
    return f"""\
# {name}: {pairs:,} pairs of your own. Written by scripts.own_text. Edit it as you like: the stages that a change
# concerns run again.
kind: text
source: "{source.language}"
target: "{target.language}"
about: Own text, {source.language} to {target.language}.
text:  # add a validation set of your own as valid.{source.language} and valid.{target.language}, a test set as test....
{files}
steps:
  - normalise_space
  # Words are what stands between spaces; in scripts without spaces each letter counts. In 99 of 100 pairs of this text
  # the longer side has at most {ratio:g} times the words of the shorter; the others are rarely translations.
  - clean: {{splits: [train], min_words: 1, max_words: {max_words(source, target)}, max_ratio: {ratio:g}}}
  - deduplicate: {{splits: [train]}}  # else copies of a pair could be in both train and test
  # {valid}% for validation and {test}% for testing, chosen by a hash of the source; none if you add sets of your own
  - split_by_hash: {{by: "{source.language}", valid_percent: {valid}, test_percent: {test}}}
  - save_raw  # the references without changes, for the scores
  # Subwords of both languages from the text as it is written: no script needs a tokeniser. Their number, {subwords:,},
  # suits the size of the text and its {letters:,} different letters; a text too small for it gets fewer.
  - sentencepiece: {{units: {subwords}, fewer: true}}
binarise:
  joined_dictionary: true  # both languages share the embeddings
"""


def config_text(name: str, source: Side, target: Side, *, files: Files, gpu: bool) -> str:
    """Return the configuration's YAML, for the size of the text and the machine.

    Args:
        name: of the dataset.
        source: counts of the source side.
        target: counts of the target side.
        files: where the configuration is written.
        gpu: the training runs on GPUs.
    """
    max_updates = _MAX_UPDATES[gpu]
    tokens = max(1.0, sum(target.words) / max(1, len(target.words)) * 1.4 * target.lines)
    # tokens of an update; without a GPU two processes share them, each with room for the longest line
    update = 4000 if gpu else max(1536, 8 * max_words(source, target))
    updates = math.ceil(int(min(max(_PASSES * tokens / update, _MIN_UPDATES), max_updates)) / 100) * 100
    if gpu:
        arch = "pla_dynamicconv_iwslt_de_en" if target.lines < 1_000_000 else "pla_dynamicconv_wmt_en_de_big"
        # the recipe's warm-up, at most a tenth of the training
        settings = f"arch: {arch}\n  warmup-updates: {min(4000, updates // 10)}"
    else:
        settings = f"""\
lr-period-updates: {updates - 200}  # one cycle: max-update minus the warm-up
batch: {{tokens: {update}, max-tokens: {update // 2}}}  # each of two processes has room for the longest line"""
    keys = {"base": f"{files.base_folder}/{'base_gpu' if gpu else 'base'}.yaml", "dataset": files.dataset_value}
    return f"""\
# DynamicConv for {name}. Written by scripts.own_text; edit it as you like.
#   {files.command}
{yaml.safe_dump(keys, allow_unicode=True, sort_keys=False, width=math.inf).rstrip()}
train:
  # {_PASSES} passes over the text, but {_MIN_UPDATES} to {max_updates:,} updates
  max-update: {updates}
  save-interval-updates: {updates // _CHECKPOINTS}  # {_CHECKPOINTS} checkpoints
  validate-interval-updates: {updates // _CHECKPOINTS}
  {settings}
"""


def word(text: str) -> str:
    """Return ``text`` if it can be part of the name of a file; for argparse."""
    if not LANGUAGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected letters, digits, _ and -")
    return text


def language_code(text: str) -> str:
    """Return ``text`` if it has the form of a language code; for argparse."""
    if not _CODE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected a code of two or three letters, which may be followed by a script or a country: "
            "de, zh, zh-Hant, pt_BR"
        )
    return text


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("name", type=word, metavar="NAME", help="name of the new dataset: letters, digits, _ and -")
    add("--src", type=Path, required=True, metavar="FILE", help="the source side: one sentence per line")
    add("--tgt", type=Path, required=True, metavar="FILE", help="the target side")
    add("--source", type=language_code, required=True, metavar="LANGUAGE", help="its language, such as zh")
    add("--target", type=language_code, required=True, metavar="LANGUAGE", help="its language, such as en")
    add("--project", type=Path, metavar="DIR", help="write files and results to DIR (default: the checkout)")
    add("--run", action="store_true", help="prepare, train and score now, as scripts.reproduce does")
    arguments = parser.parse_args(argv)
    name = arguments.name
    files = Files.in_project(name, arguments.project) if arguments.project else Files.in_checkout(name)
    if arguments.source == arguments.target:
        parser.error(f"--source and --target are both {arguments.source}; give two languages")
    for path in (files.dataset, files.config):
        if path.exists():
            raise UserError(
                f"{path} exists already; continue with {files.command}, choose another NAME, or remove the file"
            )
    check_sides([arguments.src, arguments.tgt])
    sides = count(arguments.src, arguments.source), count(arguments.tgt, arguments.target)
    if sides[0].lines != sides[1].lines:
        counts = " but ".join(f"{side.path} has {side.lines:,} lines" for side in sides)
        raise UserError(f"{counts}; line n of one must translate line n of the other: fix the files")
    devices = find_devices(cpu_processes=2)
    if not arguments.project and not Path.cwd().is_relative_to(CHECKOUT):
        print(f"the files and results go to the checkout, {CHECKOUT}; --project DIR keeps them in a folder of yours")
    texts = dataset_text(name, *sides), config_text(name, *sides, files=files, gpu=devices.gpu)
    for path, text in zip((files.dataset, files.config), texts, strict=True):
        with atomic_file(path) as f:
            f.write(text)
    print(f"written, for training on {devices}: {near(files.dataset)}, {near(files.config)}")
    for side in sides:
        print(f"{side.path.name} begins in {side.language}: {textwrap.shorten(side.first, 80, placeholder=' ...')}")
    print(f"results will be in {near(files.work / name)}")
    print(f"prepare, train, score and see translations:\n  {files.command}", flush=True)
    if arguments.run:
        reproduce.main(files.arguments)


if __name__ == "__main__":
    run_command(main)
