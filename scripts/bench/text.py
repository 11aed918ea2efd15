"""``scripts.bench text``: the time of translating a whole file, each program with the batches that it makes itself.

Peers of this project's search are fairseq-interactive and, if it is installed, CTranslate2. They translate with a
trained Transformer of fairseq, since CTranslate2 has no convolutions. All use the same beam size, at most
``MAX_TOKENS`` tokens in a batch, and the same subwords, which are prepared before. Loading of models is not timed.
"""

import re
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch

from data_prep.common.errors import UserError
from data_prep.common.process import ask_python
from data_prep.dataset import load_dataset
from scripts.bench import ctranslate2
from scripts.bench.timing import Row, precisions
from scripts.fairseq_io.bulk import MAX_TOKENS, KeptAnswers, answer_all
from scripts.fairseq_io.inputs import user_dir
from scripts.fairseq_io.models import load_trained
from scripts.fairseq_io.translator import Translator
from scripts.translate import TextTranslator, Trained, find_trained

_TOTAL = re.compile(r"Total time: ([\d.]+) seconds")  # of fairseq-interactive, without the loading of the model


def tables(args: Namespace, device: torch.device) -> Iterator[Iterator[Row]]:
    """Yield the table of ``text``."""
    ours, peer = find_trained(args.ours), find_trained(args.peer)
    if ours.dataset != peer.dataset:
        raise UserError(
            f"{args.ours} was trained on {ours.dataset} and {args.peer} on {peer.dataset}; give two models "
            "of one dataset, so that both translate the same subwords"
        )
    if device.type != "cpu":
        raise UserError(f"--device is {device}; this benchmark translates on a CPU only")
    yield measure(args, ours, peer, subwords(args.file, ours), device)


def subwords(file: Path, trained: Trained) -> list[str]:
    """Return the lines of a text file as the subwords that the model reads, without empty lines."""
    if not file.is_file():
        raise UserError(f"there is no file {file}; expected text, one sentence per line")
    translator = TextTranslator(trained, Namespace(beam=None, lenpen=None, nbest=None, precision="fp32"))
    with open(file, "rb") as f:
        lines = [translator.prepare(line, number) for number, line in enumerate(f, 1)]
    return [line for line in lines if line.strip()]


def measure(args: Namespace, ours: Trained, peer: Trained, lines: list[str], device: torch.device) -> Iterator[Row]:
    """Yield a row for each program and precision."""
    baseline, words = interactive(peer, lines, args.beam)

    def row(model: Path, program: str, precision: str, seconds: float, words: int) -> Row:
        return [
            ("model", "{}", model.name),
            ("program", "{}", program),
            ("products", "{}", precision),
            ("lines", "{:,}", len(lines)),
            ("lines/s", "{:.1f}", len(lines) / seconds),
            ("subwords a line", "{:.1f}", words / len(lines)),
            ("to fairseq-interactive", "{:.2f}x", baseline / seconds),
        ]

    yield row(args.peer, "fairseq-interactive", "fp32", baseline, words)
    for compute_type in ctranslate2.compute_types(device):
        yield row(args.peer, "CTranslate2", compute_type, *by_ctranslate2(peer, lines, args.beam, compute_type))
    for precision in precisions(args):
        yield row(args.ours, "scripts.translate", precision, *by_translator(ours, lines, args.beam, precision))


def by_translator(trained: Trained, lines: list[str], beam: int, precision: str) -> tuple[float, int]:
    """Translate as scripts.translate does; return the seconds, and the number of subwords that were written."""
    languages = load_dataset(trained.dataset).languages
    settings = {**trained.generate, "beam": beam, "post-process": None}
    model = Translator(trained.model, trained.dictionaries, (languages[0], languages[1]), settings, precision=precision)
    start = time.perf_counter()
    encoded = (line.encode() for line in lines)
    answers = list(answer_all(encoded, lambda line, _: line.decode(), model, 1, KeptAnswers(None)))
    return time.perf_counter() - start, sum(len(best.text.split()) for best, *_ in answers)


def interactive(trained: Trained, lines: list[str], beam: int) -> tuple[float, int]:
    """Translate with fairseq-interactive and fairseq's own search; return what ``by_translator`` returns.

    Raises:
        UserError: fairseq-interactive failed; the message has its last line.
    """
    source, target = load_dataset(trained.dataset).languages
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "lines")
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        printed, logged = ask_python(
            *("-m", "fairseq_cli.interactive"),
            str(trained.dictionaries.resolve()),
            f"--user-dir={user_dir()}",
            f"--path={trained.model.resolve()}",
            "--task=translation",
            f"--source-lang={source}",
            f"--target-lang={target}",
            f"--input={text}",
            f"--buffer-size={len(lines)}",
            f"--max-tokens={MAX_TOKENS}",
            f"--beam={beam}",
            f"--lenpen={trained.generate.get('lenpen', 1)}",
            "--cpu",
            failed="fairseq-interactive failed",
        )
    total = _TOTAL.search(logged) or _TOTAL.search(printed)  # it depends on what fairseq imports first
    if total is None:
        raise UserError(f"fairseq-interactive printed no `{_TOTAL.pattern}`; its last line: {logged.strip()[-200:]}")
    seconds = total[1]
    best = [line for line in printed.split("\n") if line.startswith("H-")]
    return float(seconds), sum(len(line.split("\t")[2].split()) for line in best)


def by_ctranslate2(trained: Trained, lines: list[str], beam: int, compute_type: str) -> tuple[float, int]:
    """Translate with CTranslate2, which sorts and batches the lines itself; return what ``by_translator`` returns."""
    model = ctranslate2.Translator(load_trained(trained.model, trained.dictionaries), torch.device("cpu"), compute_type)
    sentences = [line.split() for line in lines]
    penalty = trained.generate.get("lenpen", 1)
    start = time.perf_counter()
    written = model.translate(sentences, beam=beam, length_penalty=penalty, max_tokens=MAX_TOKENS)
    return time.perf_counter() - start, sum(written)
