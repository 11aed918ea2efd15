"""Compare the text steps with a checkout of Moses on files of your own, line by line; prints what differs.

The checkout must be of the state of Moses that is compared with: for 2018-10, of the commit before 9fc964d. Two files
of as many lines are cleaned as a parallel text, too.
example: python -m tests.data_prep.compare_moses --checkout mosesdecoder --moses 2018-10 en=news.en fr=news.fr
"""

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

from data_prep.text.characters import lowercase, remove_non_printing
from data_prep.text.moses import VERSIONS, clean_line, moses_filter
from tests.data_prep.moses_scripts import comparisons, run_perl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="LANGUAGE=FILE", nargs="+")
    parser.add_argument("--checkout", metavar="DIR", type=Path, required=True)
    parser.add_argument("--moses", choices=VERSIONS, required=True)
    arguments = parser.parse_args()
    different, sides = 0, [each.partition("=")[::2] for each in arguments.files]
    for language, file in sides:
        lines = _lines(Path(file))
        more = [(["remove-non-printing-char.perl"], remove_non_printing), (["lowercase.perl"], lowercase)]
        for (script, *options), step in [*more, *comparisons(language, arguments.moses)]:
            start = time.perf_counter()
            theirs = run_perl([str(arguments.checkout / "scripts" / "tokenizer" / script), *options], lines)
            perl, start = time.perf_counter() - start, time.perf_counter()
            rows = list(zip(lines, theirs, map(step, lines), strict=True))
            speeds = f"{len(lines) / perl:,.0f} lines/s by perl, {len(lines) / (time.perf_counter() - start):,.0f} here"
            rows = [row for row in rows if row[1] != row[2] and row[0].strip()]
            print(f"{language}: {script} {' '.join(options)}: {len(rows)} of {len(lines):,} lines differ; {speeds}")
            for row in rows[:3]:
                print("  " + "\n  ".join(map(ascii, row)))
            different += len(rows)
    if len(sides) == 2 and len({len(_lines(Path(file))) for _, file in sides}) == 1:
        for options in (["1", "80"], ["-ratio", "1.5", "1", "175"], ["-ratio", "1.5", "3", "20"]):
            different += _compare_cleaning(arguments.checkout / "scripts" / "training", options, sides)
    sys.exit(1 if different else 0)


def _lines(file: Path) -> list[str]:
    return file.read_bytes().decode().removesuffix("\n").split("\n")


def _compare_cleaning(folder: Path, options: list[str], sides: list[tuple[str, str]]) -> int:
    *ratio, shortest, longest = options
    drop = moses_filter(min_tokens=int(shortest), max_tokens=int(longest), ratio=float(ratio[1]) if ratio else 9.0)
    given = {language: _lines(Path(file)) for language, file in sides}
    ours = [
        row for row in zip(*(map(clean_line, lines) for lines in given.values()), strict=True) if drop(*row) is None
    ]
    with tempfile.TemporaryDirectory() as name:
        for language, lines in given.items():
            Path(name, f"corpus.{language}").write_text("".join(f"{line}\n" for line in lines))
        names = [f"{name}/corpus", *given, f"{name}/cleaned"]
        command = ["perl", str(folder / "clean-corpus-n.perl"), *ratio, *names, shortest, longest]
        subprocess.run(command, check=True, capture_output=True)
        theirs = list(zip(*(_lines(Path(name, f"cleaned.{language}")) for language in given), strict=True))
    wrong = sum(one != other for one, other in zip_longest(ours, theirs))
    print(f"clean-corpus-n.perl {' '.join(options)}: {wrong} of {len(theirs):,} pairs that stay differ", flush=True)
    return wrong


if __name__ == "__main__":
    main()
