"""Compare the text steps with a checkout of Moses on files of your own, line by line; prints what differs.

The checkout must be of the state of Moses that is compared with: for 2018-10, of the commit before 9fc964d. Two files
of as many lines are cleaned as a parallel text, too.
example: python -m tests.data_prep.compare_moses --checkout mosesdecoder --moses 2018-10 en=news.en fr=news.fr
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

from data_prep.text.characters import lowercase, remove_non_printing
from data_prep.text.moses import VERSIONS, clean_line, moses_filter
from data_prep.text.punctuation import punctuation_normaliser
from data_prep.text.tokenise import tokeniser


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="LANGUAGE=FILE", nargs="+")
    parser.add_argument("--checkout", metavar="DIR", type=Path, required=True)
    parser.add_argument("--moses", choices=VERSIONS, required=True)
    arguments = parser.parse_args()
    folder, moses = arguments.checkout / "scripts" / "tokenizer", arguments.moses
    different = 0
    for each in arguments.files:
        language, _, file = each.partition("=")
        lines = _lines(file)
        comparisons: list[tuple[list[str], Callable[[str], str]]] = [
            (["remove-non-printing-char.perl"], remove_non_printing),
            (["lowercase.perl"], lowercase),
        ]
        for penn in (False, True):
            options = ["-l", language, *["-penn"] * penn]
            step = punctuation_normaliser(language=language, moses=moses, penn=penn)
            comparisons.append((["normalize-punctuation.perl", *options], step))
        for aggressive in (False, True):
            for escape in (False, True):
                options = ["-q", "-l", language, *["-a"] * aggressive, *["-no-escape"] * (not escape)]
                step = tokeniser(language=language, moses=moses, aggressive=aggressive, escape=escape)
                comparisons.append((["tokenizer.perl", *options], step))
        for (script, *options), step in comparisons:
            different += _compare(f"{language}: {' '.join([script, *options])}", folder / script, options, step, lines)
    sides = [each.partition("=")[::2] for each in arguments.files]
    if len(sides) == 2 and len({len(_lines(file)) for _, file in sides}) == 1:
        for options in (["1", "80"], ["-ratio", "1.5", "1", "175"], ["-ratio", "1.5", "3", "20"]):
            different += _compare_cleaning(arguments.checkout / "scripts" / "training", options, sides)
    sys.exit(1 if different else 0)


def _lines(file: str) -> list[str]:
    return Path(file).read_bytes().decode().removesuffix("\n").split("\n")


def _compare_cleaning(folder: Path, options: list[str], sides: list[tuple[str, str]]) -> int:
    *ratio, shortest, longest = options
    drop = moses_filter(min_tokens=int(shortest), max_tokens=int(longest), ratio=float(ratio[1]) if ratio else 9.0)
    rows = zip(*(map(clean_line, _lines(file)) for _, file in sides), strict=True)
    ours = [row for row in rows if drop(*row) is None]
    with tempfile.TemporaryDirectory() as name:
        corpus, cleaned = Path(name) / "corpus", Path(name) / "cleaned"
        for language, file in sides:
            shutil.copyfile(file, f"{corpus}.{language}")
        names = [corpus, *(language for language, _ in sides), cleaned]
        command = ["perl", folder / "clean-corpus-n.perl", *ratio, *names, shortest, longest]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        theirs = list(zip(*(_lines(f"{cleaned}.{language}") for language, _ in sides), strict=True))
    wrong = sum(one != other for one, other in zip_longest(ours, theirs))
    print(f"clean-corpus-n.perl {' '.join(options)}: {wrong} of {len(theirs):,} pairs that stay differ", flush=True)
    return wrong


def _compare(name: str, script: Path, options: list[str], step: Callable[[str], str], lines: list[str]) -> int:
    text = "".join(f"{line}\n" for line in lines).encode()
    start = time.perf_counter()
    done = subprocess.run(["perl", str(script), *options], input=text, capture_output=True, check=True)
    perl = time.perf_counter() - start
    start = time.perf_counter()
    found = list(map(step, lines))
    ours = time.perf_counter() - start
    expected = done.stdout.decode().removesuffix("\n").split("\n")
    rows = [row for row in zip(lines, expected, found, strict=True) if row[1] != row[2] and row[0].strip()]
    speeds = f"{len(lines) / perl:,.0f} lines/s by perl, {len(lines) / ours:,.0f} here"
    print(f"{name}: {len(rows)} of {len(lines):,} lines differ; {speeds}", flush=True)
    for row in rows[:3]:
        print("  " + "\n  ".join(map(ascii, row)))
    return len(rows)


if __name__ == "__main__":
    main()
