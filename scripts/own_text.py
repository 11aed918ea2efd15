"""Write a dataset and a configuration for two text files of which line n translates line n.

Looks at the text and the machine; a comment explains every choice:

  data_prep/datasets/NAME.yaml      where the text is and how it is prepared
  configs/NAME/dynamicconv.yaml     how the model is trained

Then it prints the command that prepares, trains and scores; with --run it does so at once. Languages that put no spaces
between words (Chinese, Japanese, Thai, ...) need no other options.

example: python -m scripts.own_text manuals --src my.zh --tgt my.en --source zh --target en --run
"""

import argparse
import math
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

_SAMPLE = 100_000  # lines that are looked at closely; all are counted
_LEAST = 600  # updates
_CHECKPOINTS = 20  # of a training, however long it is
_UNITS = {20_000: 2000, 500_000: 8000, 5_000_000: 16_000, math.inf: 32_000}  # of SentencePiece, by the most pairs
_BUDGET = {False: (5, 20_000), True: (30, 100_000)}  # passes over the text and most updates, without and with a GPU


@dataclass
class Side:
    """Facts about one file."""

    path: Path
    language: str
    lines: int = 0  # of the whole file
    letters: Counter[str] = field(default_factory=Counter)  # of the sample
    words: list[int] = field(default_factory=list)  # of each line of the sample; see ``count_words``


def look(path: Path, language: str) -> Side:
    """Read a file, its first ``_SAMPLE`` lines closely; see ``check_script``."""
    side = Side(path, language)
    for line in SuppliedText(path):
        side.lines += 1
        if side.lines <= _SAMPLE:
            side.letters.update(text := line.decode())
            side.words.append(count_words(text))
    check_script(language, side.letters, path)
    return side


def quantile(values: list[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed; 1 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 1.0


def most_words(source: Side, target: Side) -> int:
    """Words of the longest line that is kept: 995 of 1,000 pairs have no longer one."""
    longest = quantile([float(max(pair)) for pair in zip(source.words, target.words, strict=True)], 0.995)
    return max(100, math.ceil(longest / 50) * 50)


def dataset_text(name: str, source: Side, target: Side) -> str:
    """Return the dataset's YAML."""
    pairs = source.lines
    both = [pair for pair in zip(source.words, target.words, strict=True) if min(pair)]
    ratio = max(2.5, math.ceil(2.5 * quantile([max(pair) / min(pair) for pair in both], 0.99)) / 2)
    wanted = next(units for most, units in _UNITS.items() if pairs <= most)
    # SentencePiece keeps the letters that make up 99.95% of the text, and needs a unit for each beside those of more
    letters = len(source.letters | target.letters)
    units = max(wanted, -(-(letters + wanted // 2) // 500) * 500)
    valid, test = (2, 3) if pairs < 200_000 else (1, 1)
    paths = {f"train.{side.language}": str(side.path.absolute()) for side in (source, target)}
    files = textwrap.indent(yaml.safe_dump(paths, allow_unicode=True, sort_keys=False, width=math.inf), "  ").rstrip()
    return f"""\
# {name}: {pairs:,} pairs of your own. Written by scripts.own_text; edit it as you like: what is changed is made anew.
kind: text
source: "{source.language}"
target: "{target.language}"
about: Own text, {source.language} to {target.language}.
text:  # add valid and test sets of your own likewise: valid.{source.language}, valid.{target.language}, test....
{files}
steps:
  - normalise_space
  # Words are counted by spaces, and by letters in scripts that have none. At least 99 of 100 pairs of this text have a
  # ratio of lengths below {ratio:g}; the others are rarely translations of each other.
  - clean: {{splits: [train], min_words: 1, max_words: {most_words(source, target)}, max_ratio: {ratio:g}}}
  - deduplicate: {{splits: [train]}}  # the same pair twice would stand in train and in test
  # {valid}% to validate and {test}% to test, chosen by the hash of the source; nothing where you give sets of your own
  - split_by_hash: {{by: "{source.language}", valid_percent: {valid}, test_percent: {test}}}
  - save_raw  # references as they were, for the scores
  # Units of both languages from text as written: no tokeniser is needed, whatever the script. {units:,}: for the size
  # of the text, and enough for its {letters:,} different letters; if it has room for fewer, so many.
  - sentencepiece: {{units: {units}, fewer: true}}
binarise:
  joined_dictionary: true  # the model shares its embeddings between both languages
"""


def config_text(name: str, source: Side, target: Side, *, gpu: bool) -> str:
    """Return the configuration's YAML, for the size of the text and the machine."""
    passes, most = _BUDGET[gpu]
    tokens = max(1.0, sum(target.words) / max(1, len(target.words)) * 1.4 * target.lines)
    # without a GPU by two processes, each with room for the longest line
    update = 4000 if gpu else max(1536, 8 * most_words(source, target))
    updates = math.ceil(int(min(max(passes * tokens / update, _LEAST), most)) / 100) * 100
    if gpu:
        arch = "pla_dynamicconv_iwslt_de_en" if target.lines < 1_000_000 else "pla_dynamicconv_wmt_en_de_big"
        # the recipe's warm-up, but at most a tenth of a short training
        more = f"arch: {arch}\n  warmup-updates: {min(4000, updates // 10)}"
    else:
        more = f"""\
lr-period-updates: {updates - 200}  # one cycle: max-update less warm-up
batch: {{tokens: {update}, max-tokens: {update // 2}}}  # each of two processes has room for the longest line"""
    return f"""\
# DynamicConv for {name}. Written by scripts.own_text; edit what you like.
#   python -m scripts.reproduce configs/{name}/dynamicconv.yaml
base: ../own_text/{"base_gpu" if gpu else "base"}.yaml
dataset: "{name}"
train:
  # {passes} passes over the text, but {_LEAST} to {most:,} updates; more is better
  max-update: {updates}
  save-interval-updates: {updates // _CHECKPOINTS}  # {_CHECKPOINTS} checkpoints
  validate-interval-updates: {updates // _CHECKPOINTS}
  {more}
"""


def word(text: str) -> str:
    """A name that files and fairseq can bear, for argparse."""
    if not LANGUAGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected letters, digits, _ and -, such as en or zh_CN")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("name", type=word, metavar="NAME", help="what the dataset is to be called: letters, digits, _ and -")
    add("--src", type=Path, required=True, metavar="FILE", help="the source side, a sentence a line")
    add("--tgt", type=Path, required=True, metavar="FILE", help="the target side")
    add("--source", type=word, required=True, metavar="LANGUAGE", help="language of the source side, such as zh")
    add("--target", type=word, required=True, metavar="LANGUAGE", help="language of the target side, such as en")
    add("--run", action="store_true", help="prepare, train and score now, as scripts.reproduce does")
    arguments = parser.parse_args(argv)
    name = arguments.name
    if arguments.source == arguments.target:
        parser.error(f"--source and --target are both {arguments.source}; give two languages")
    dataset = CHECKOUT / "data_prep" / "datasets" / f"{name}.yaml"
    config = CHECKOUT / "configs" / name / "dynamicconv.yaml"
    goes_on = typed("scripts.reproduce", near(config))
    for path in (dataset, config):
        if path.exists():
            raise UserError(f"{path} is there already; go on with {goes_on}, choose another NAME, or remove it")
    check_sides([arguments.src, arguments.tgt])
    sides = look(arguments.src, arguments.source), look(arguments.tgt, arguments.target)
    if sides[0].lines != sides[1].lines:
        counts = " but ".join(f"{side.path} has {side.lines:,} lines" for side in sides)
        raise UserError(f"{counts}; line n of one must translate line n of the other: mend the files")
    devices = find_devices(cpu_processes=2)
    texts = dataset_text(name, *sides), config_text(name, *sides, gpu=devices.gpu)
    for path, text in zip((dataset, config), texts, strict=True):
        with atomic_file(path) as f:
            f.write(text)
    print(f"written, for training on {devices}: {near(dataset)}, {near(config)}")
    print(f"prepare, train, score and see translations:\n  {goes_on}", flush=True)
    if arguments.run:
        reproduce.main([near(config)])


if __name__ == "__main__":
    run_command(main)
