"""Write a dataset and a configuration for two text files of which line n translates line n.

Looks at the text and the machine; a comment explains every choice:

  data_prep/datasets/NAME.yaml      how the text is prepared
  configs/NAME/dynamicconv.yaml     how the model is trained

Then it prints the commands that prepare, train and translate. Languages that put no spaces between words (Chinese,
Japanese, Thai, ...) need no other options.

example: python -m scripts.own_text manuals --src my.zh --tgt my.en --source zh --target en
"""

import math
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from data_prep.dataset import LANGUAGE
from data_prep.sources.supplied import SuppliedText
from data_prep.text.clean import count_words
from data_prep.text.languages import letters_of
from scripts.common import CHECKOUT
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.outputs import atomic_file
from scripts.fairseq_io.devices import find_devices
from scripts.reproduce.run import RESERVED
from scripts.scoring.metrics import tokeniser

_SAMPLE = 100_000  # pairs that are looked at closely; all are counted
_LEAST = 600  # three checkpoints to average
_UNITS = {20_000: 2000, 500_000: 8000, 5_000_000: 16_000, math.inf: 32_000}  # of SentencePiece, by the most pairs
_EPOCHS = 20  # from so many on the last ten are averaged: batches are not full, and there are fewer
_BUDGET = {False: (5, 20_000), True: (30, 100_000)}  # passes over the text and most updates, without and with a GPU


@dataclass
class Side:
    """Facts about one file."""

    path: Path
    language: str
    lines: int = 0  # of the whole file
    letters: Counter[str] = field(default_factory=Counter)  # how often each stands in the sample
    words: list[int] = field(default_factory=list)  # of each line of the sample; see ``count_words``

    def scripts(self) -> Counter[str]:
        """Return how many letters there are of each script, by its name in Unicode."""
        found: Counter[str] = Counter()
        for letter, count in self.letters.items():
            if letter.isalpha():
                found[re.split("[ -]", unicodedata.name(letter, "UNKNOWN"))[0]] += count
        return found

    def check(self) -> None:
        """Refuse text that is not in the language's script."""
        found = self.scripts()
        wanted = letters_of(self.language)
        if not found:
            raise UserError(f"{self.path} has no letters in its first {len(self.words):,} lines; give a text")
        if wanted and sum(found[script] for script in wanted) < 0.1 * found.total():
            raise UserError(
                f"{self.path} is given as {self.language}, but its letters are {found.most_common(1)[0][0].title()}; "
                "give each file to the side of its language (--src with --source, --tgt with --target)"
            )


def look(sides: tuple[Side, Side]) -> None:
    """Read both files, the first ``_SAMPLE`` pairs closely."""
    texts = [SuppliedText(side.path) for side in sides]
    for number, rows in enumerate(zip_longest(*texts)):
        for side, row in zip(sides, rows, strict=True):
            if row is None:
                continue
            side.lines += 1
            if number < _SAMPLE:
                line = row.decode()
                side.letters.update(line)
                side.words.append(count_words(line))
    for side in sides:
        side.check()
    if sides[0].lines != sides[1].lines:
        counts = " but ".join(f"{side.path} has {side.lines:,} lines" for side in sides)
        raise UserError(f"{counts}; line n of one must translate line n of the other: mend the files")


def quantile(values: list[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed; 1 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 1.0


def most_words(sides: tuple[Side, Side]) -> int:
    """Words of the longest line that is kept: 995 of 1,000 pairs have no longer one."""
    longest = quantile([float(max(pair)) for pair in zip(sides[0].words, sides[1].words, strict=True)], 0.995)
    return max(100, math.ceil(longest / 50) * 50)


def dataset_text(name: str, sides: tuple[Side, Side]) -> str:
    """Return the dataset's YAML."""
    source, target = sides
    pairs = source.lines
    both = [pair for pair in zip(source.words, target.words, strict=True) if min(pair)]
    ratio = max(2.5, math.ceil(2.5 * quantile([max(pair) / min(pair) for pair in both], 0.99)) / 2)
    wanted = next(units for most, units in _UNITS.items() if pairs <= most)
    # SentencePiece keeps the letters that make up 99.95% of the text, and needs a unit for each beside those of more
    letters = len(set(source.letters) | set(target.letters))
    units = max(wanted, -(-(letters + wanted // 2) // 500) * 500)
    valid, test = (2, 3) if pairs < 200_000 else (1, 1)
    found = [
        f"{side.language} in {' and '.join(s.title() for s, _ in side.scripts().most_common(2))}" for side in sides
    ]
    return f"""\
# {name}: {pairs:,} pairs of your own, {found[0]}, {found[1]} letters.
# Written by scripts.own_text; edit what you like: what is changed is prepared anew.
kind: text
source: "{source.language}"
target: "{target.language}"
about: Own text, {source.language} to {target.language}.
steps:
  - normalise_space
  # Words are counted by spaces, and by letters in scripts that have none. 99 of 100 pairs of this text have a ratio of
  # lengths below {ratio:g} or less than 2.5; the others are rarely translations of each other.
  - clean: {{splits: [train], min_words: 1, max_words: {most_words(sides)}, max_ratio: {ratio:g}}}
  - deduplicate: {{splits: [train]}}  # the same pair twice would stand in train and in test
  # {valid}% to validate and {test}% to test, chosen by the hash of the source; nothing where you give sets of your own
  - split_by_hash: {{by: "{source.language}", valid_percent: {valid}, test_percent: {test}}}
  - save_raw  # references as they were, for the scores
  # Units of both languages from text as written: no tokeniser is needed, whatever the script.
  # {units:,}: for the size of the text, and enough for its {letters:,} different letters; if it has room for
  # fewer, so many.
  - sentencepiece: {{units: {units}, fewer: true}}
binarise:
  joined_dictionary: true  # the model shares its embeddings between both languages
"""


def config_text(name: str, sides: tuple[Side, Side], *, gpu: bool) -> str:
    """Return the configuration's YAML, for the size of the text and the machine."""
    pairs, target = sides[0].lines, sides[1]
    language = target.language
    passes, most = _BUDGET[gpu]
    tokens = max(1.0, sum(target.words) / max(1, len(target.words)) * 1.4 * pairs)
    update = 4000 if gpu else max(1536, 8 * most_words(sides))  # by two processes, each with room for the longest line
    updates = math.ceil(int(min(max(passes * tokens / update, _LEAST), most)) / 100) * 100
    in_fact = updates * update / tokens  # a small text has more passes, a large one fewer
    if gpu:
        arch = "pla_dynamicconv_iwslt_de_en" if pairs < 1_000_000 else "pla_dynamicconv_wmt_en_de_big"
        base, more, section = "../iwslt14_de_en/base.yaml", "  share-all-embeddings: true\n", ""
        if updates * update < _EPOCHS * tokens:  # too few for the mean of ten epochs
            more += f"  save-interval-updates: {updates // 50}\n  keep-interval-updates: 10\n"
            section = "average: {by: update}  # an epoch is long\n"
        why = "the paper's recipe for IWSLT'14, on one GPU or more"
    else:
        arch, base = "pla_dynamicconv_small", "../debian_en_de/base.yaml"
        more = f"  lr-period-updates: {updates - 200}  # one cycle: max-update less warm-up\n"
        each = update // 2
        section = f"batch: {{tokens: {update}, max-tokens: {each}}}  # each device has room for the longest line\n"
        why = "the recipe of the demo, for processors: a small model"
    return f"""\
# DynamicConv for {name}. Written by scripts.own_text; edit what you like.
#   python -m scripts.reproduce configs/{name}/dynamicconv.yaml
base: {base}  # {why}
dataset: "{name}"
seeds: [1]
train:
  arch: {arch}
  max-update: {updates}  # some {in_fact:.2g} passes over the text, {_LEAST} to {most:,} updates; more is better
  dropout: {0.3 if gpu else 0.1}
{more}{section}generate:
  post-process: sentencepiece
# Of text as written, by sacreBLEU's tokeniser for {language}: {tokeniser(language)}. Tokenised BLEU would count what
# stands between blanks, which in scripts without them is a whole sentence.
score: {{metric: sacrebleu}}
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("name", metavar="NAME", help="what the dataset is to be called: letters, digits, _ and -")
    for flag, side in (("--src", "source"), ("--tgt", "target")):
        parser.add_argument(flag, type=Path, required=True, metavar="FILE", help=f"the {side} side, a sentence a line")
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}", required=True, metavar="LANGUAGE", help=f"language of the {side} side, such as en or zh"
        )
    arguments = parser.parse_args(argv)
    name = arguments.name
    if not re.fullmatch("[A-Za-z0-9_-]+", name) or name in RESERVED:
        raise UserError(f"NAME is {name!r}, expected letters, digits, _ and - , and none of {', '.join(RESERVED)}")
    for language in (arguments.source, arguments.target):
        if not LANGUAGE.fullmatch(language):
            raise UserError(f"got the language {language!r}, expected letters, digits, _ and -, such as en or zh_CN")
    if arguments.source == arguments.target:
        raise UserError(f"--source and --target are both {arguments.source}; give two languages")
    dataset = CHECKOUT / "data_prep" / "datasets" / f"{name}.yaml"
    config = CHECKOUT / "configs" / name / "dynamicconv.yaml"
    for path in (dataset, config):
        if path.exists():
            raise UserError(f"{path} is there already; choose another NAME, or remove it")
    sides = Side(arguments.src, arguments.source), Side(arguments.tgt, arguments.target)
    look(sides)
    devices = find_devices(cpu_processes=2)
    texts = dataset_text(name, sides), config_text(name, sides, gpu=devices.gpu)
    for path, text in zip((dataset, config), texts, strict=True):
        with atomic_file(path) as f:
            f.write(text)
    files = f"--src {shlex.quote(str(arguments.src))} --tgt {shlex.quote(str(arguments.tgt))}"
    print(
        f"written, for training on {devices}: {dataset.relative_to(CHECKOUT)}, {config.relative_to(CHECKOUT)}\n\n"
        "prepare, train and score, then translate:\n"
        f"  python -m data_prep {name} {files} --to binarise\n"
        f"  python -m scripts.reproduce configs/{name}/dynamicconv.yaml\n"
        f"  python -m scripts.translate work/{name}/dynamicconv < NEW.{arguments.source}"
    )


if __name__ == "__main__":
    run_command(main)
