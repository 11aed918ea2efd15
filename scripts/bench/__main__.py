"""Time this project beside its peers, taking turns, and print the ratios.

A ratio is the peer's time over this project's: above 1 this project is the faster one. Milliseconds depend on the
machine. Ratios are of turns taken in one process (CTranslate2 has one of its own), and depend on it less.

example: python -m scripts.bench ops --lengths 128
"""

import argparse
import importlib
from collections.abc import Sequence
from itertools import takewhile

from data_prep.common.command import argument_parser, positive, run_command
from data_prep.common.errors import UserError
from data_prep.common.terminal import StatusLine, aligned

# each with its module
MEASURED = {
    "ops": ("operators", "LightConv and DynamicConv alone, against fairseq's modules, F.conv1d and attention"),
    "decode": ("decoding", "one decoding step, and beam search from end to end"),
    "train": ("training", "updates as fairseq-train makes them"),
    "kernels": ("kernels", "the convolutions' kernels alone, beside the bandwidth of a copy"),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")


def numbers(text: str) -> list[int]:
    """A list of whole numbers, as in 32,128."""
    return [positive(part) for part in text.split(",")]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar=f"{{{','.join(MEASURED)}}}")
    for name, (_, what) in MEASURED.items():
        form = argparse.ArgumentDefaultsHelpFormatter
        add = commands.add_parser(name, formatter_class=form, help=what, description=f"Measure {what}.").add_argument
        add("--device", default="cpu", help="cpu, cuda or cuda:N")
        add("--seconds", type=float, default=1.0, help="about how long each case is timed")
        if name == "kernels":
            add("--tokens", type=positive, default=4096, help="T * B")
            add("--channels", type=positive, default=1024, help="C, in heads of 64")
            add("--length", type=numbers, default="128", help="T, several by commas")
            add("--kernels", type=numbers, default="31,65", help="K, several by commas")
        if name == "ops":
            add("--lengths", type=numbers, default="32,128,512,2048", help="T, several by commas")
            add("--tokens", type=positive, default=4096, help="T * B")
            add("--channels", type=positive, default=512, help="C")
            add("--heads", type=positive, default=8, help="H")
            add("--kernel", type=positive, default=31, help="K")
            add("--causal", action="store_true", help="pad on the left only, as a decoder does")
        if name in ("ops", "decode"):
            add("--dtype", default="float32", choices=DTYPES, help="type of all tensors")
        if name in ("train", "decode"):
            add("--vocab-size", type=positive, default=10_000, help="words of the dictionary")
        if name == "decode":
            worked = (
                "time searches by the seconds that processors work, and take the least: for a machine that others load"
            )
            add("--cpu-seconds", action="store_true", help=f"{worked} (with OMP_NUM_THREADS=1)")
            add("--sentences", type=numbers, default="32,1", help="a batch, several by commas")
            add("--length", type=positive, default=30, help="words of a source and of a hypothesis")
        if name == "train":
            add("--tokens", type=positive, default=2048, help="words of a batch, padding included")
            add("--flags", default="", help="more flags of fairseq-train, such as --flags=--fp16")
            add("--widths", type=numbers, default="128", help="d, several by commas")
            add("--layers", type=numbers, default="2,2", help="blocks of encoder and decoder")
            add("--models", default="", help="only those whose names have one of these words, by commas")
            add("--shapes", type=positive, default=1, help="number of batch lengths, taken in turns")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    import torch

    from scripts.fairseq_io.models import load_plugin

    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # for whatever names no device: fairseq's trainer, events
    torch.manual_seed(1)
    load_plugin()  # before anything imports the operators alone
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
        left = len(list(takewhile(lambda cell: isinstance(cell[-1], str), table[0])))  # columns of words
        print("\n".join(aligned([[heading for heading, *_ in table[0]], *cells], left=left, rule=True)) + "\n")


if __name__ == "__main__":
    run_command(main)
