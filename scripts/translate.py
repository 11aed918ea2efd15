"""Translate or summarise plain text with a trained model, one sentence per line.

MODEL is a run's folder in work/ (its best seed, with the settings tuned for it), a folder that scripts.pretrained
filled, or a checkpoint. Each line goes through the steps of the model's dataset (tokeniser, BPE, ...) and through the
model, and the result is detokenised. A line that is not UTF-8 or is too long for the model is reported on standard
error; the translation of an empty line is an empty line.

With a FILE, lines of similar length are translated together, which is fastest; the translations are in the order of the
lines. With --out they are written to a file, which appears when it is complete; after an interruption the same command
resumes. Without FILE, lines are read from standard input, and each is translated before the next is read; with
--batch-size N, N lines at a time. In a terminal there is a prompt; Ctrl-D ends it.

With --nbest N, the N best translations of each line are printed, each as the number of the line, the score and the
text, separated by tabs. The score is fairseq-generate's: the sum of the tokens' log-probabilities to base 2, divided by
the number of tokens to the power of the length penalty (--lenpen).

examples:
  echo "This package contains the documentation." | python -m scripts.translate work/debian_en_de/dynamicconv
  python -m scripts.translate work/debian_en_de/dynamicconv my.en --precision int8 --out my.de
"""

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from data_prep.common.command import argument_parser, positive, run_command
from data_prep.common.errors import UserError
from data_prep.common.files import digest, read_json
from data_prep.common.outputs import atomic_file, check_writable, lock, remove, work_folder
from data_prep.common.progress import progress
from data_prep.common.terminal import clock
from data_prep.dataset import load_dataset
from data_prep.lines import line_steps
from data_prep.steps.learn import APPLY_BPE
from data_prep.text.clean import clean_text
from scripts.config import SEARCH_PRECISIONS
from scripts.fairseq_io.bulk import MAX_TOKENS, KeptAnswers, answer_all
from scripts.fairseq_io.commands import BEAM, PRECISION
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.precision import take_search_precision
from scripts.fairseq_io.translator import Answer, Translator
from scripts.pretrained import codes_file, read_published
from scripts.scoring.detokenise import detokeniser
from scripts.scoring.rouge import SENTENCE_SEPARATOR

_MODELS = ("model.pt", "tuned/model.pt", "averaged/model.pt", "checkpoints/checkpoint_best.pt", "checkpoint_best.pt")
_facts = functools.partial(read_json, missing={})


@dataclass(frozen=True)
class Trained:
    """A trained model, with the files and settings for translating with it."""

    model: Path
    dictionaries: Path
    dataset: str
    codes_folders: tuple[Path, ...]
    generate: dict[str, Any]  # fairseq-generate's flags for the run's test set, if known
    train: dict[str, Any]


def find_trained(path: Path, *, dataset: str | None = None, dictionaries: Path | None = None) -> Trained:
    """Find a trained model's dictionaries, BPE codes, dataset and generation settings from its path.

    Args:
        path: a run's folder in work/, whose best seed on validation is used; a seed's folder; a folder that
            scripts.pretrained filled; or a checkpoint.
        dataset: the dataset whose steps the text goes through, if it does not follow from the path.
        dictionaries: the folder of dict.*.txt, if it does not follow from the path.

    Raises:
        UserError: there is no model at the path, or its dataset is not known.
    """
    if not path.exists():
        raise UserError(f"there is no {path}; give a run's folder in work/, a folder of pretrained.py, or a checkpoint")
    best = _facts(path / "record.json").get("best_seed")
    root = path if best is None else path / f"seed{best}"
    model = path if path.is_file() else next((root / name for name in _MODELS if (root / name).is_file()), None)
    if model is None:
        seeds = ", ".join(sorted(folder.name for folder in path.glob("seed*"))) or "it has none"
        raise UserError(
            f"{path} has neither a record.json with its best seed nor any of {', '.join(_MODELS)}; give a "
            f"checkpoint, or one of its seeds: {seeds}"
        )
    data = next((parent for parent in model.resolve().parents if (parent / "binarised").is_dir()), None)
    if dictionaries is None:
        dictionaries = model.parent if data is None or any(model.parent.glob("dict.*.txt")) else data / "binarised"
    published = read_published().get(_facts(model.parent / "manifest.json").get("name", ""))
    codes = (model.parent, dictionaries, *([] if data is None else [data / "prepared"]))

    def recorded(name: str) -> dict[str, Any]:  # the model may be a link; the records lie around its target
        return next(filter(None, (_facts(folder / name) for folder in model.resolve().parents[:3])), {})

    config = recorded("record.json").get("config", {})
    dataset = dataset or (published.dataset if published else config.get("dataset") or (data.name if data else None))
    if dataset is None:
        raise UserError(f"no record beside {model} has its dataset; name it with --dataset")
    settings = config.get("generate", {}) | recorded("tuned/tune.json").get("chosen", {})
    settings = settings or (published.generate if published else {})
    generate = {key: value for key, value in settings.items() if key != "last" and value is not None}
    return Trained(model, dictionaries, dataset, codes, generate, config.get("train", {}))


def read_text(line: bytes, number: int) -> str:
    """Return a line of the input, cleaned as the user's own text is in preparation."""
    text = line.decode("utf-8", errors="replace")
    if "\N{REPLACEMENT CHARACTER}" in text:
        print(f"line {number}: not UTF-8", file=sys.stderr, flush=True)
    return clean_text(text).replace("\t", " ").strip()


class TextTranslator:
    """A trained model that translates plain text.

    Args:
        trained: the model.
        arguments: the command's.

    Raises:
        UserError: the model is a language model, its files are missing, or the arguments do not fit it.
    """

    def __init__(self, trained: Trained, arguments: argparse.Namespace) -> None:
        dataset = load_dataset(trained.dataset)
        if dataset.target is None:
            raise UserError(f"{trained.model} is a language model (of {trained.dataset}), and cannot translate")
        self.source, self.target = dataset.source, dataset.target
        units, codes = dataset.units, None
        if units and not any(step.name == APPLY_BPE for step in dataset.steps):
            codes = codes_file(self.source, *trained.codes_folders)
        chosen = {key: value for key in ("beam", "lenpen") if (value := getattr(arguments, key)) is not None}
        # if no record of the run has it, the dataset's steps determine how subwords are joined
        self.settings = {"post-process": units} | trained.generate | chosen
        precision = take_search_precision(
            arguments.precision or self.settings.get(PRECISION, "fp32"), trained.train, gpu=find_devices().gpu
        )
        if precision.reason:
            print(precision.reason, file=sys.stderr, flush=True)
        self.settings[PRECISION] = precision.precision
        self.nbest, beam = arguments.nbest, self.settings.get("beam", BEAM)
        if self.nbest is not None and self.nbest > beam:
            raise UserError(f"--nbest is {self.nbest}, and the search has {beam} hypotheses; add --beam {self.nbest}")
        self._steps = line_steps(dataset, self.source, codes)
        self._detokenise = detokeniser(self.target, dataset)
        self._is_summary = dataset.kind in ("cnn_dm", "cnn_dm_plain")  # their reader puts a mark between sentences
        languages = (self.source, self.target)
        self.model = Translator(
            trained.model, trained.dictionaries, languages, self.settings, precision=precision.precision
        )

    def prepare(self, line: bytes, number: int) -> str:
        """Return a line as the tokens that the model reads; report problems of the line on standard error."""
        text = read_text(line, number)
        source = self._steps(text) if text else ""
        if (length := len(source.split())) > self.model.longest:
            cut = f"{length} tokens, and the model takes {self.model.longest}: the rest was left out"
            print(f"line {number}: {cut}", file=sys.stderr, flush=True)
        return source

    def translate(self, sources: Sequence[str]) -> list[list[Answer]]:
        """Return the best hypotheses for each prepared line, all lines in one batch; none for an empty line."""
        filled = [source for source in sources if source.strip()]
        answers = iter(self.model.search(filled, self.nbest or 1) if filled else [])
        return [next(answers) if source.strip() else [] for source in sources]

    def format(self, number: int, answers: Sequence[Answer]) -> bytes:
        """Return the answers to line ``number`` as they are printed."""
        texts = [self._as_text(answer.text) for answer in answers] or [""]
        if self.nbest is None:
            return f"{texts[0]}\n".encode()
        scores = [f"{answer.score:.4f}" for answer in answers] or [""]
        lines = (f"{number}\t{score}\t{text}\n" for score, text in zip(scores, texts, strict=True))
        return "".join(lines).encode()

    def _as_text(self, tokens: str) -> str:
        text = self._detokenise(tokens.replace(SENTENCE_SEPARATOR, " ") if self._is_summary else tokens)
        return " ".join(text.split())


def translate_stream(lines: Iterable[bytes], out: IO[bytes], translator: TextTranslator, batch_size: int) -> None:
    """Translate lines as they come, ``batch_size`` at a time."""
    numbered = enumerate(lines, 1)
    while batch := list(itertools.islice(numbered, batch_size)):
        sources = [translator.prepare(line, number) for number, line in batch]
        for (number, _), answers in zip(batch, translator.translate(sources), strict=True):
            out.write(translator.format(number, answers))
        out.flush()


def typed_lines(prompt: str) -> Iterator[bytes]:
    """Yield the lines that are typed in a terminal, until Ctrl-D."""
    while True:
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            print(file=sys.stderr)
            return
        yield line


def translate_file(file: Path, out: IO[bytes], translator: TextTranslator, kept: KeptAnswers, max_tokens: int) -> None:
    """Translate the lines of a file that ``kept`` lacks, and show the progress; write the translations of all lines."""
    with open(file, "rb") as lines:
        total = sum(1 for _ in lines)
    start, initial = time.monotonic(), len(kept.answers)
    with open(file, "rb") as lines, progress("translating", total, initial=initial) as advance:
        answers = answer_all(
            lines,
            translator.prepare,
            translator.model,
            translator.nbest or 1,
            kept,
            max_tokens=max_tokens,
            advance=advance,
        )
        for number, hypotheses in enumerate(answers, 1):
            out.write(translator.format(number, hypotheses))
        out.flush()
    seconds = time.monotonic() - start
    count = total - initial
    print(f"{count:,} lines in {clock(seconds)}, {count / seconds:.1f} lines/s", file=sys.stderr)


def write_translations(
    file: Path, out: Path, trained: Trained, translator: TextTranslator, arguments: argparse.Namespace
) -> None:
    """Write the translations of a file's lines to ``out``; continue from what a killed run left beside it."""
    inputs = {
        "file": digest([file]),
        "model": digest([trained.model]),
        "dataset": trained.dataset,
        "settings": translator.settings,
        "max-tokens": arguments.max_tokens,
        "nbest": arguments.nbest,
    }
    with lock(out):
        work = work_folder(out, inputs)
        kept = KeptAnswers(work / "answers.jsonl")
        if kept.answers:
            print(f"{len(kept.answers):,} lines are already translated", file=sys.stderr, flush=True)
        with atomic_file(out, "wb") as f:
            translate_file(file, f, translator, kept, arguments.max_tokens)
        remove(work)


def run(out: IO[bytes], trained: Trained, arguments: argparse.Namespace) -> None:
    """Translate the file that the arguments name, or standard input.

    Raises:
        UserError: the file does not exist, ``--out`` is a file of the user's, or as for ``TextTranslator``.
    """
    if arguments.file is None and arguments.out is not None:
        raise UserError("--out is for the translations of a FILE; without one they go to standard output")
    if arguments.file is not None and not arguments.file.is_file():
        raise UserError(f"there is no file {arguments.file}; expected text, one sentence per line")
    if arguments.out is not None:
        check_writable(arguments.out)
    translator = TextTranslator(trained, arguments)
    if arguments.out is not None:
        write_translations(arguments.file, arguments.out, trained, translator, arguments)
    elif arguments.file is not None:
        translate_file(arguments.file, out, translator, KeptAnswers(None), arguments.max_tokens)
    elif sys.stdin.isatty():
        print(f"{trained.model}: type a line, or Ctrl-D to end", file=sys.stderr, flush=True)
        translate_stream(typed_lines(f"{translator.source}> "), out, translator, arguments.batch_size)
    else:
        translate_stream(sys.stdin.buffer, out, translator, arguments.batch_size)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a run's folder, a published model's, or a checkpoint")
    add("file", type=Path, metavar="FILE", nargs="?", help="text, one sentence per line (default: standard input)")
    add("--out", type=Path, metavar="FILE", help="write the translations there; resume a killed run")
    add("--dataset", metavar="NAME", help="the dataset whose steps prepare a line, if MODEL does not record it")
    add("--dictionaries", type=Path, metavar="DIR", help="the folder of dict.*.txt, if MODEL does not record it")
    size = f"tokens in a batch, including padding, for a FILE (default: {MAX_TOKENS:,})"
    add("--max-tokens", type=positive, default=MAX_TOKENS, metavar="N", help=size)
    add("--batch-size", type=positive, default=1, metavar="N", help="lines of standard input at a time (default: 1)")
    add("--beam", type=positive, metavar="N", help="width of the search (default: that of the run, or 5)")
    add("--lenpen", type=float, metavar="X", help="length penalty (default: that of the run, or 1)")
    add("--nbest", type=positive, metavar="N", help="print the N best translations with their scores")
    add(
        "--precision",
        choices=[name for name in SEARCH_PRECISIONS if name != "fp16"],
        help="bf16 or int8, on a CPU (default: that of the run, or fp32)",
    )
    arguments = parser.parse_intermixed_args(argv)  # FILE may also stand after the options
    trained = find_trained(arguments.model, dataset=arguments.dataset, dictionaries=arguments.dictionaries)
    answers_to = sys.stdout.buffer
    with redirect_stdout(sys.stderr):  # what libraries print must not mix with the translations
        run(answers_to, trained, arguments)


if __name__ == "__main__":
    run_command(main)
