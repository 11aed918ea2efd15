"""Time this project beside other libraries, in turns, and print the ratios.

A ratio is the other library's time divided by this project's: above 1, this project is faster. Ratios depend less on
the machine than milliseconds do, because all take turns in one process (only CTranslate2 has a process of its own).

example: python -m scripts.bench ops --lengths 128
"""

import argparse
import importlib
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from data_prep.common.command import argument_parser, positive, run_command
from data_prep.common.errors import UserError
from data_prep.common.terminal import StatusLine, aligned

# command: its module in scripts.bench, and a description
MEASURED = {
    "ops": ("operators", "LightConv and DynamicConv alone, against fairseq's modules, F.conv1d and attention"),
    "decode": ("decoding", "one decoding step, and beam search from end to end"),
    "text": ("text", "the translation of a whole file, beside fairseq-interactive and CTranslate2"),
    "train": ("training", "updates as fairseq-train makes them"),
    "kernels": ("kernels", "the time of the convolutions' kernels beside that of a copy"),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")


def numbers(text: str) -> list[int]:
    """Parse whole numbers separated by commas, such as 32,128; for argparse."""
    return [positive(part) for part in text.split(",")]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar=f"{{{','.join(MEASURED)}}}")
    for name, (_, text) in MEASURED.items():
        form = argparse.ArgumentDefaultsHelpFormatter
        add = commands.add_parser(name, formatter_class=form, help=text, description=f"Measure {text}.").add_argument
        add("--device", default="cpu", help="cpu, cuda or cuda:N")
        if name == "text":
            add("ours", type=Path, metavar="OURS", help="folder of a run of the plugin's models in work/")
            add("peer", type=Path, metavar="PEER", help="folder of a run of fairseq's Transformer on the same dataset")
            add("file", type=Path, metavar="FILE", help="text, one sentence per line")
            add("--beam", type=positive, default=4, help="width of the search")
        else:
            add("--seconds", type=float, default=1.0, help="approximate number of seconds for which each case is timed")
        if name == "kernels":
            add("--tokens", type=positive, default=4096, help="T * B")
            add("--channels", type=positive, default=1024, help="C, in heads of 64")
            add("--length", type=numbers, default="128", help="T; separate several by commas")
            add("--kernels", type=numbers, default="31,65", help="K; separate several by commas")
        if name == "ops":
            add("--lengths", type=numbers, default="32,128,512,2048", help="T; separate several by commas")
            add("--tokens", type=positive, default=4096, help="T * B")
            add("--channels", type=positive, default=512, help="C")
            add("--heads", type=positive, default=8, help="H")
            add("--kernel", type=positive, default=31, help="K")
            add("--causal", action="store_true", help="pad on the left only, as a decoder does")
        if name in ("ops", "decode"):
            add("--dtype", default="float32", choices=DTYPES, help="type of all tensors")
        if name in ("train", "decode"):
            add("--vocab-size", type=positive, default=10_000, help="number of entries in the vocabulary")
        if name == "decode":
            cpu_seconds = "time searches in CPU seconds, and take the fastest turn: for a machine with other load"
            add("--cpu-seconds", action="store_true", help=f"{cpu_seconds} (with OMP_NUM_THREADS=1)")
            add("--sentences", type=numbers, default="32,1", help="sentences in a batch; separate several by commas")
            add("--length", type=positive, default=30, help="number of words in each source and each hypothesis")
            reference = "also time our search with the reference implementations of its operators"
            add("--reference", action="store_true", help=reference)
        if name == "train":
            add("--tokens", type=positive, default=2048, help="number of words in a batch, including padding")
            add("--flags", default="", help="further flags of fairseq-train, such as --flags=--fp16")
            add("--widths", type=numbers, default="128", help="d, the embedding size; separate several by commas")
            add("--layers", type=numbers, default="2,2", help="numbers of blocks in encoder and decoder")
            add("--models", default="", help="only models with one of these words in their names")
            add("--shapes", type=positive, default=1, help="number of different batch shapes, used in turns")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    import torch

    from scripts.fairseq_io.models import load_plugin

    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # for code that names no device: fairseq's trainer, events
    torch.manual_seed(1)
    load_plugin()  # before any other import of the plugin
    from lightconv_plugin.ops import library
    from scripts.bench.timing import machine

    missing = library.load()
    if missing is not None:
        raise UserError(f"there is nothing to measure: {missing}")
    print(f"{args.what} on {machine(device)}")
    measured = importlib.import_module(f"scripts.bench.{MEASURED[args.what][0]}")
    for rows in measured.tables(args, device):
        status, table = StatusLine(), []
        for row in rows:
            table.append(row)
            status.update("measured " + " ".join(str(value) for *_, value in row[:3]))
        status.close()
        cells = [["-" if value is None else form.format(value) for *_, form, value in row] for row in table]
        left = len(list(takewhile(lambda cell: isinstance(cell[-1], str), table[0])))  # number of text columns
        print("\n".join(aligned([[heading for heading, *_ in table[0]], *cells], left=left, rule=True)) + "\n")


if __name__ == "__main__":
    run_command(main)
