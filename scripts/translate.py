"""Translate or summarise lines from standard input with a trained model: text as people write it, in and out.

MODEL is a run's folder in work/ (its best seed, with the settings tuned for it), a folder that scripts.pretrained
filled, or a checkpoint. Each line goes through the steps of the model's dataset (tokeniser, BPE, ...), the model, and
back. Every line in gives one line out, as soon as it is there; with --batch-size N, N lines are read and answered at a
time, which is faster. A line that is not UTF-8, or longer than the model can take, is named on standard error; an empty
line is answered with an empty one.

examples:
  echo "This package contains the documentation." | python -m scripts.translate work/debian_en_de/dynamicconv
  python -m scripts.translate work/pretrained/dynamicconv --beam 5 --batch-size 32 < my.en > my.de
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from data_prep.common.command import argument_parser, positive, run_command
from data_prep.common.errors import UserError
from data_prep.common.files import read_json
from data_prep.dataset import load_dataset
from data_prep.lines import line_steps
from data_prep.steps.learn import APPLY_BPE
from data_prep.text.clean import clean_text
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.precision import take_search_precision
from scripts.fairseq_io.translator import Translator
from scripts.pretrained import codes_file, read_published
from scripts.scoring.detokenise import detokeniser
from scripts.scoring.rouge import SENTENCE_SEPARATOR

_MODELS = ("model.pt", "tuned/model.pt", "averaged/model.pt", "checkpoints/checkpoint_best.pt", "checkpoint_best.pt")
_facts = functools.partial(read_json, missing={})


@dataclass(frozen=True)
class Trained:
    """A model and what it needs to be asked."""

    model: Path
    dictionaries: Path
    dataset: str
    codes_folders: tuple[Path, ...]
    generate: dict[str, Any]  # fairseq-generate's flags as the run's test set is generated with, where that is known
    train: dict[str, Any]


def find_trained(path: Path, *, dataset: str | None = None, dictionaries: Path | None = None) -> Trained:
    """Find what belongs to a run's folder in work/ or one of its seeds', one of scripts.pretrained, or a checkpoint.

    Of a run's seeds the one that is best on validation is taken. ``dataset``, whose steps the text goes through, and
    ``dictionaries``, the folder of dict.*.txt, are given where they do not follow from the path.
    """
    if not path.exists():
        raise UserError(f"there is no {path}; give a run's folder in work/, a folder of pretrained.py, or a checkpoint")
    best = _facts(path / "record.json").get("best_seed")
    root = path if best is None else path / f"seed{best}"
    model = path if path.is_file() else next((root / name for name in _MODELS if (root / name).is_file()), None)
    if model is None:
        seeds = ", ".join(sorted(each.name for each in path.glob("seed*"))) or "none there"
        raise UserError(
            f"{path} has neither a record.json that says its best seed nor any of {', '.join(_MODELS)}; give a "
            f"checkpoint, or one of its seeds: {seeds}"
        )
    data = next((parent for parent in model.resolve().parents if (parent / "binarised").is_dir()), None)
    if dictionaries is None:
        dictionaries = model.parent if data is None or any(model.parent.glob("dict.*.txt")) else data / "binarised"
    published = read_published().get(_facts(model.parent / "manifest.json").get("name", ""))
    dataset = dataset or (published.dataset if published else data.name if data else None)
    if dataset is None:
        raise UserError(f"{model} does not say how its text was prepared; name the dataset with --dataset")
    codes = (model.parent, dictionaries, *([] if data is None else [data / "prepared"]))

    def recorded(name: str) -> dict[str, Any]:  # wherever a link to the model lies, its records lie around the model
        return next(filter(None, (_facts(folder / name) for folder in model.resolve().parents[:3])), {})

    config = recorded("record.json").get("config", {})
    settings = config.get("generate", {}) | recorded("tuned/tune.json").get("chosen", {})
    settings = settings or (published.generate if published else {})
    generate = {key: value for key, value in settings.items() if key != "last" and value is not None}
    return Trained(model, dictionaries, dataset, codes, generate, config.get("train", {}))


def read_text(line: bytes, number: int) -> str:
    """A line of the input, cleaned as your own text is in preparation."""
    text = line.decode("utf-8", errors="replace")
    if "\N{REPLACEMENT CHARACTER}" in text:
        print(f"line {number}: not UTF-8", file=sys.stderr, flush=True)
    return clean_text(text).replace("\t", " ").strip()


def answers(
    lines: Iterable[bytes], steps: Callable[[str], str], model: Translator, batch_size: int
) -> Iterator[list[str]]:
    """The model's tokens for each line, in lists as long as the batches that were read."""
    numbered = enumerate(lines, 1)
    while batch := list(itertools.islice(numbered, batch_size)):
        sources = []
        for number, line in batch:
            text = read_text(line, number)
            sources.append(steps(text) if text else "")
            if (length := len(sources[-1].split())) > model.longest:
                cut = f"{length} tokens, and the model takes {model.longest}: the rest was left out"
                print(f"line {number}: {cut}", file=sys.stderr, flush=True)
        asked = [source for source in sources if source.strip()]
        found = iter(model.translate(asked) if asked else [])
        yield [next(found) if source.strip() else "" for source in sources]


def run(lines: Iterable[bytes], out: IO[bytes], trained: Trained, arguments: argparse.Namespace) -> None:
    """Answer all lines."""
    dataset = load_dataset(trained.dataset)
    source, target = dataset.source, dataset.target
    if target is None:
        raise UserError(f"{trained.model} is of {trained.dataset}, a language model: it has nothing to answer")
    parted, codes = dataset.units, None
    if parted and not any(step.name == APPLY_BPE for step in dataset.steps):
        codes = codes_file(source, *trained.codes_folders)
    given = {key: value for key in ("beam", "lenpen") if (value := getattr(arguments, key)) is not None}
    # where no record of the run says how units are joined, the dataset's steps do
    generate = {"post-process": parted} | trained.generate | given
    taken = take_search_precision(arguments.precision, find_devices(), trained.train)
    if taken.reason:
        print(taken.reason, file=sys.stderr, flush=True)
    as_written = detokeniser(target, dataset)
    summaries = dataset.kind in ("cnn_dm", "cnn_dm_plain")  # their reader puts a mark between sentences
    steps = line_steps(dataset, source, codes)
    model = Translator(trained.model, trained.dictionaries, (source, target), generate, precision=taken.precision)
    if sys.stdin.isatty():
        print(f"{trained.model}, {source} to {target}: type a line", file=sys.stderr, flush=True)
    for batch in answers(lines, steps, model, arguments.batch_size):
        for each in batch:
            text = as_written(each.replace(SENTENCE_SEPARATOR, " ") if summaries else each)
            out.write(" ".join(text.split()).encode() + b"\n")
        out.flush()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a run's folder, a published model's, or a checkpoint")
    add("--dataset", metavar="NAME", help="whose steps prepare a line, where MODEL does not say it")
    add("--dictionaries", type=Path, metavar="DIR", help="the folder of dict.*.txt, where MODEL does not say it")
    add("--batch-size", type=positive, default=1, metavar="N", help="lines at a time (default: 1)")
    add("--beam", type=positive, metavar="N", help="width of the search (default: that of the run, or 5)")
    add("--lenpen", type=float, metavar="X", help="length penalty (default: that of the run, or 1)")
    add("--precision", choices=("auto", "fp32", "bf16"), default="fp32", help="bf16: on a CPU (default: fp32)")
    arguments = parser.parse_args(argv)
    trained = find_trained(arguments.model, dataset=arguments.dataset, dictionaries=arguments.dictionaries)
    answers_to = sys.stdout.buffer
    with redirect_stdout(sys.stderr):  # whatever libraries print is no answer
        run(sys.stdin.buffer, answers_to, trained, arguments)


if __name__ == "__main__":
    run_command(main)
