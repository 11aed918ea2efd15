"""Speed of each step on one core, speed and memory of all of preparation, and an estimate for a large corpus.

For all of it the lines given are repeated up to --lines, one side shifted by a line each time, so that no pair occurs
twice.

example: python -m data_prep.bench --src train.en --tgt train.de --lines 1000000 --workers 1 2
"""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from subword_nmt.learn_bpe import get_vocabulary

from data_prep.dataset import load_dataset
from data_prep.prepare import prepare
from data_prep.text import bpe, characters, moses, punctuation, tokenise
from scripts.common.command import argument_parser, positive, run_command
from scripts.common.files import read_json, write_json
from scripts.common.terminal import aligned, clock, repeatedly

EN_FR_PAIRS = 40_800_000

_YAML = """\
kind: text
source: en
target: de
steps:
  - normalise_space
  - tokenise
  - clean: {{splits: [train], max_words: 175, max_ratio: 9}}
  - deduplicate: {{splits: [train]}}
  - hold_out: {{splits: [train], into: heldout, every: 1333}}
  - bpe: {{merges: {merges}}}
"""


@dataclass(frozen=True)
class Speed:
    """Lines a second of one process: of the first pass over the text, and of one that finds its words remembered."""

    first: float
    again: float


def measure(steps: Mapping[str, Callable[[str], str]], lines: Iterable[str]) -> dict[str, Speed]:
    """The speed of each step by name; each is given what the one before it made of ``lines``."""
    text = list(lines)
    speeds = {}
    for name, step in steps.items():
        taken = []
        for _ in range(2):
            start = time.process_time()
            made = list(map(step, text))
            taken.append(max(time.process_time() - start, 1e-9))
        speeds[name] = Speed(first=len(text) / taken[0], again=len(text) / taken[1])
        text = made
    return speeds


def steps_of(language: str) -> dict[str, Callable[[str], str]]:
    """The steps of the translation datasets, but BPE."""
    return {
        "normalise punctuation": punctuation.punctuation_normaliser(language=language),
        "remove non-printing": characters.remove_non_printing,
        "tokenise": tokenise.tokeniser(language=language, aggressive=True),
        "clean": moses.clean_line,
        "lower-case": characters.lowercase,
    }


def memory(process: int) -> int:
    """Bytes of a process and of all that it started, pages that they share counted once."""
    folder = Path(f"/proc/{process}")
    try:
        pss = re.search(r"^Pss: +(\d+)", (folder / "smaps_rollup").read_text(), re.MULTILINE)
        children = [int(child) for task in folder.glob("task/*/children") for child in task.read_text().split()]
    except OSError:  # it ended meanwhile
        return 0
    return (int(pss[1]) * 1024 if pss else 0) + sum(map(memory, children))


def _sample(samples: list[int]) -> None:
    samples.append(memory(os.getpid()))


def repeated(path: Path, lines: int, out: Path, *, shift: int = 0) -> None:
    """Write so many lines of a file, as often round as need be, each time ``shift`` lines further round."""
    given = path.read_bytes().removesuffix(b"\n").split(b"\n")
    with open(out, "wb") as f:
        for number in range(lines):
            turn, place = divmod(number, len(given))
            f.write(given[(place + shift * turn) % len(given)] + b"\n")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--src", metavar="FILE", type=Path, required=True, help="English text")
    parser.add_argument("--tgt", metavar="FILE", type=Path, required=True, help="German text")
    parser.add_argument("--lines", metavar="N", type=positive, default=1_000_000, help="pairs (default: a million)")
    parser.add_argument("--merges", metavar="N", type=positive, default=32_000, help="of BPE (default: 32000)")
    parser.add_argument(
        "--workers", metavar="N", type=positive, nargs="+", default=[1, 2], help="numbers of processes (default: 1 2)"
    )
    arguments = parser.parse_args()
    lines = arguments.src.read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
    tokens = list(map(tokenise.tokeniser(language="en"), lines))
    apply = bpe.encoder(codes=bpe.learn_from_counts(get_vocabulary(tokens).items(), merges=arguments.merges))
    speeds = measure(steps_of("en"), lines) | measure({"apply BPE": apply}, tokens)
    each_step = [(name, f"{speed.first:,.0f}", f"{speed.again:,.0f}") for name, speed in speeds.items()]
    print(f"lines a second on one core, {len(lines):,} lines of {arguments.src}")
    print("\n".join(aligned([("step", "first pass", "again"), *each_step], left=1, rule=True)), end="\n\n", flush=True)
    rows = [("workers", "pass", "seconds", "pairs a second", "peak memory", f"{EN_FR_PAIRS / 1e6:.1f}M pairs")]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        (folder / "raw").mkdir()
        repeated(arguments.src, arguments.lines, folder / "raw" / "train.en")
        repeated(arguments.tgt, arguments.lines, folder / "raw" / "train.de", shift=1)
        for split in ("valid", "test"):
            for side, path in (("en", arguments.src), ("de", arguments.tgt)):
                repeated(path, 100, folder / "raw" / f"{split}.{side}")
        write_json(folder / "raw" / "manifest.json", {})  # as download.py: other text is looked through once more
        (folder / "bench.yaml").write_text(_YAML.format(merges=arguments.merges))
        dataset = load_dataset(str(folder / "bench.yaml"))
        for workers in arguments.workers:
            start, samples = time.monotonic(), [memory(os.getpid())]
            with repeatedly(0.2, partial(_sample, samples)):
                prepare(dataset, raw=folder / "raw", out=folder / "out", workers=workers)
            seconds = time.monotonic() - start
            passes = {**read_json(folder / "out" / "timings.json"), "all": seconds}
            for each, taken in passes.items():
                rate = arguments.lines / max(taken, 0.1)
                peak = f"{max(samples) / 1e6:,.0f} MB" if each == "all" else ""
                projected = clock(EN_FR_PAIRS / rate)
                rows.append((str(workers), each, f"{taken:,.1f}", f"{rate:,.0f}", peak, projected))
    print("\n".join(aligned(rows, left=2, rule=True)))


if __name__ == "__main__":
    run_command(main)
