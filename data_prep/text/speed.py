"""A benchmark of each step: lines a second on one core.

example: python -m data_prep.text.speed --language en FILE
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_prep.text import bpe, characters, moses, punctuation, tokenise
from scripts.common.terminal import aligned


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", type=Path, help="text in UTF-8, one sentence a line")
    parser.add_argument("--language", default="en", help="of the text (default: en)")
    parser.add_argument("--merges", type=int, default=8000, help="BPE merges to learn from it (default: 8000)")
    arguments = parser.parse_args()
    lines = arguments.file.read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
    speeds = measure(steps_of(arguments.language), lines)
    tokens = list(map(tokenise.tokeniser(language=arguments.language), lines))
    start = time.process_time()
    codes = bpe.learn(tokens, merges=arguments.merges)
    learnt = time.process_time() - start
    speeds |= measure({"apply BPE": bpe.encoder(codes=codes)}, tokens)
    rows = [["step", "first pass", "again"]]
    rows += [[name, f"{speed.first:,.0f}", f"{speed.again:,.0f}"] for name, speed in speeds.items()]
    print(f"lines a second on one core, {len(lines):,} lines")
    print("\n".join(aligned(rows, left=1, rule=True)))
    print(f"learning {bpe.count_merges(codes):,} merges took {learnt:.1f} s")


if __name__ == "__main__":
    main()
