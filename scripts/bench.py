"""Time this project beside its peers, taking turns, and print the ratios.

  ops     LightConv and DynamicConv alone, against fairseq's modules, F.conv1d and scaled_dot_product_attention
  decode  one decoding step, and beam search from end to end
  train   updates as fairseq-train makes them
  memory  the most memory that forward and backward take
  kernels each operator's kernels alone, beside the bandwidth of a copy

A ratio is the peer's time (or memory) over this project's: above 1 this project is the better one. Milliseconds are
the machine's; ratios are from turns taken in one process (CTranslate2 has one of its own) and hold better.
"""

import argparse
import functools
import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser, positive, run_command
from scripts.common.errors import UserError
from scripts.common.files import write_json
from scripts.common.terminal import StatusLine, aligned
from scripts.fairseq_io.precision import bf16_unsupported_reason

OPERATORS = ["light", "dynamic", "dynamic module"]
DTYPES = ("float32", "bfloat16", "float16", "float64")


def numbers(text: str) -> list[int]:
    """A list of whole numbers, as in 32,128."""
    return [positive(part) for part in text.split(",")]


def multiples(text: str, of: int) -> list[int]:
    """A list of multiples of a number."""
    if any(each % of for each in numbers(text)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected multiples of {of}")
    return numbers(text)


def device(text: str) -> str:
    """The name of a device that this project runs on."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected cpu, cuda or cuda:N")
    return text


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Help that ends with the default, where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


def parse() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar="{ops,decode,train,memory,kernels}")
    for name in ("ops", "decode", "train", "memory", "kernels"):
        command = commands.add_parser(name, formatter_class=Defaults)
        command.add_argument("--device", type=device, default="cpu", help="cpu, cuda or cuda:N")
        command.add_argument("--threads", type=positive, help="threads on a CPU; torch chooses them unless given")
        command.add_argument("--seconds", type=float, default=1.0, help="about how long each case is timed")
        command.add_argument("--out", type=Path, metavar="FILE", help="write the records as JSON too")
        if name == "kernels":
            command.add_argument("--tokens", type=int, default=4096, help="T * B; hypotheses of a decoding step")
            command.add_argument("--channels", type=int, default=1024, help="C")
            command.add_argument("--length", type=positive, default=128, help="T")
            command.add_argument("--kernels", type=numbers, default="31,65", help="K, several by commas")
            command.add_argument("--heads", type=int, default=0, help="H (default: heads of 64 channels)")
            command.add_argument("--dropconnect", type=float, default=0.0, help="of the convolutions")
            command.add_argument("--only", default="", help="only what has this in its name: 'conv, K', float16")
        if name in ("ops", "memory"):
            command.add_argument(
                "--operators", help="several by commas", default=",".join(OPERATORS if name == "ops" else OPERATORS[:2])
            )
            lengths = "32,128,512,2048" if name == "ops" else "32,128,512,2048,8192"
            command.add_argument("--lengths", type=numbers, default=lengths, help="T, several by commas")
            command.add_argument("--tokens", type=positive, default=4096, help="T * B")
            command.add_argument("--channels", type=positive, default=512, help="C")
            command.add_argument("--heads", type=positive, default=8, help="H")
            command.add_argument("--kernel", type=positive, default=31, help="K")
            command.add_argument("--causal", action="store_true", help="pad on the left only, as a decoder does")
        if name == "ops":
            command.add_argument("--no-peers", action="store_true", help="without peers: time a token at each T")
            command.add_argument("--layouts", action="store_true", help="causal: batch first, with a state, packed")
        if name in ("ops", "memory", "decode"):
            command.add_argument("--dtype", default="float32", choices=DTYPES, help="type of all tensors")
        if name in ("train", "decode"):
            command.add_argument("--vocab-size", type=positive, default=10_000, help="words of the dictionary")
            command.add_argument("--precisions", help="of products on a CPU (default: fp32,bf16 if it has the units)")
        if name == "decode":
            command.add_argument("--sentences", type=numbers, default="32,1", help="a batch, several by commas")
            command.add_argument("--length", type=positive, default=30, help="words of a source and of a hypothesis")
            rows, channels = (functools.partial(multiples, of=each) for each in (4, 64))
            command.add_argument("--rows", type=rows, default="128,1024", help="hypotheses of a step alone")
            command.add_argument("--channels", type=channels, default="512,1024", help="C of a step alone")
            command.add_argument("--only", choices=("steps", "search"), help="steps alone, or whole searches")
        if name == "train":
            command.add_argument("--tokens", type=positive, default=2048, help="words of a batch, padding included")
            command.add_argument("--flags", default="", help="more of fairseq-train's flags, for every model")
            command.add_argument("--widths", type=numbers, default="128", help="d, several by commas")
            command.add_argument("--layers", type=numbers, default="2,2", help="blocks of encoder and decoder")
            command.add_argument("--models", default="", help="only those whose name has one of these words: a,b")
            command.add_argument("--shapes", type=positive, default=1, help="how many batch lengths, taken in turns")
    return parser.parse_args()


def precisions(args: argparse.Namespace) -> list[str]:
    """The precisions of products that are measured, fp32 first.

    Raises:
        UserError: one that is asked for is unknown, or the device does not have it.
    """
    on_cpu = "it is for products on a CPU; for a GPU take --flags=--bf16"
    lacking = bf16_unsupported_reason() if args.device == "cpu" else on_cpu
    if args.precisions is None:
        if lacking and args.device == "cpu":
            print(f"not measured in bf16: {lacking}")
        if args.what == "decode" and args.device != "cpu":
            return ["fp32", "fp16"]
        return ["fp32"] if lacking else ["fp32", "bf16"]
    if args.precisions not in ("fp32", "fp32,bf16"):
        raise UserError(f"--precisions is {args.precisions}, expected fp32 or fp32,bf16")
    if "bf16" in args.precisions and lacking:
        raise UserError(f"--precisions has bf16: {lacking}")
    return list(args.precisions.split(","))


@dataclass(frozen=True)
class Table:
    """A table that is measured row by row."""

    columns: Sequence[tuple[str, str, str]]  # a heading, the key in a record, and the form of its value
    records: Iterator[dict[str, Any]]
    left: int = 1  # columns of words, the others are figures

    def cells(self, record: dict[str, Any]) -> list[str]:
        """A record as a row; a dash where there is no value."""
        return ["-" if record[key] in (None, "") else form.format(record[key]) for _, key, form in self.columns]


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """Return what the command measures."""
    import torch

    from scripts.fairseq_io.models import load_plugin

    load_plugin()  # before anything imports the operators alone
    from scripts.benchmarks import ctranslate2, decoding, memory, operators, peers, training

    device = torch.device(args.device)
    if args.what in ("ops", "memory"):
        chosen = args.operators.split(",")
        unknown = set(chosen) - set(OPERATORS)
        if unknown:
            raise UserError(f"no operator {', '.join(sorted(unknown))}; choose from {', '.join(OPERATORS)}")
        if args.channels % args.heads:
            raise UserError(f"--heads {args.heads} does not divide --channels {args.channels}; choose a divisor")
        if args.kernel % 2 == 0 and not args.causal:
            raise UserError(
                f"--kernel {args.kernel} is even, so it has no middle; choose an odd width, or add --causal"
            )
        shapes = [
            peers.Shape(T, max(1, args.tokens // T), args.channels, args.heads, args.kernel, args.causal)
            for T in args.lengths
        ]
        dtype = getattr(torch, args.dtype)
        if args.what == "memory":
            yield Table(memory.COLUMNS, memory.measure(chosen, shapes, dtype=dtype, device=device))
        elif args.layouts:
            if "dynamic module" in chosen:
                raise UserError("--layouts times the operators alone; add --operators light,dynamic")
            found = operators.measure_layouts(chosen, shapes, dtype=dtype, device=device, seconds=args.seconds)
            yield Table(operators.LAYOUT_COLUMNS, found, left=2)
        elif args.no_peers:
            found = operators.measure_alone(chosen, shapes, dtype=dtype, device=device, seconds=args.seconds)
            yield Table(operators.ALONE_COLUMNS, found, left=2)
        else:
            found = operators.measure(chosen, shapes, dtype=dtype, device=device, seconds=args.seconds)
            yield Table(operators.COLUMNS, found, left=2)
    elif args.what == "kernels":
        from scripts.benchmarks import kernels

        options = {"time": args.length, "widths": args.kernels, "only": args.only}
        options |= {"heads": args.heads, "dropconnect": args.dropconnect}
        yield Table(kernels.COLUMNS, kernels.measure(args.tokens, args.channels, device, **options), left=2)
    elif args.what == "train":
        if len(args.layers) != 2:
            raise UserError(f"--layers has {len(args.layers)} numbers; give those of encoder and decoder, as in 7,6")
        several = precisions(args)
        for width in args.widths:
            entries = training.models(width, (args.layers[0], args.layers[1]), graphs=device.type == "cuda")
            chosen = [entry for entry in entries if any(word in entry.label for word in args.models.split(","))]
            if not chosen:
                names = ", ".join(entry.label for entry in entries)
                raise UserError(f"--models {args.models} names none of {names}")
            found = training.measure(
                training.in_precisions(chosen, several),
                vocab_size=args.vocab_size,
                tokens=args.tokens,
                device=device,
                flags=shlex.split(args.flags),
                seconds=args.seconds,
                width=width,
                shapes=args.shapes,
            )
            yield Table(training.COLUMNS, found)
    else:
        sizes = list(itertools.product(args.rows, args.channels))
        types = ctranslate2.compute_types(device)
        if types and (absent := [name for name in ctranslate2.COMPUTE_TYPES if name not in types]):
            print(f"not measured: CTranslate2 in {', '.join(absent)}, which it does not compute in on {device.type}")
        if args.only != "search":
            steps = decoding.measure_steps(sizes, getattr(torch, args.dtype), device, seconds=args.seconds)
            yield Table(decoding.STEP_COLUMNS, steps)
        if args.only == "steps":
            return
        found = decoding.measure_search(
            args.sentences,
            vocab_size=args.vocab_size,
            length=args.length,
            device=device,
            seconds=args.seconds,
            precisions=precisions(args),
        )
        yield Table(decoding.SEARCH_COLUMNS, found, left=3)


def main() -> None:
    args = parse()
    import torch

    from scripts.benchmarks.timing import machine
    from scripts.fairseq_io.models import load_plugin

    if args.device.startswith("cuda"):
        index, count = int(args.device.partition(":")[2] or 0), torch.cuda.device_count()
        if index >= count:
            raise UserError(
                f"--device {args.device}: torch {torch.__version__} sees no CUDA device of that number, {count} in all"
            )
        torch.cuda.set_device(index)  # for whatever names no device: fairseq's trainer, events, memory
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    load_plugin()
    from lightconv_plugin.ops import library

    missing = library.load()
    if missing is not None:
        raise UserError(f"there is nothing to measure: {missing}")
    print(f"{args.what} on {machine(torch.device(args.device))}")
    records = []
    for table in tables(args):
        status = StatusLine()
        rows = []
        for record in table.records:
            records.append(record)
            rows.append(table.cells(record))
            status.update("measured " + " ".join(str(value) for value in list(record.values())[:3]))
        status.close()
        print(
            "\n".join(aligned([[heading for heading, _, _ in table.columns], *rows], left=table.left, rule=True)) + "\n"
        )
    if args.what in ("ops", "memory") and args.device.startswith("cuda"):
        absent = [name for name in ("lightconv_cuda", "dynamicconv_cuda") if importlib.util.find_spec(name) is None]
        if absent:
            print(f"not measured: fairseq's own CUDA kernels ({', '.join(absent)} not installed)")
    if args.out:
        arguments = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        write_json(args.out, {"what": args.what, "arguments": arguments, "records": records})


if __name__ == "__main__":
    run_command(main)
