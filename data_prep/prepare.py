"""Clean, split, tokenise and segment a dataset's raw text: from download.py's folder to the input of binarise.py.

The folder written holds
  {train,valid,test}.<language>  tokenised, in BPE units
  raw/{valid,test}.<language>    the same lines untokenised: references for scores
  codes                          the BPE merges (subword-nmt)
  counts.json                    lines and words after every step, and what was dropped why

example: python data_prep/prepare.py debian_en_de --raw work/debian/raw --out work/debian/prepared
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_prep.cli import check_out, command_parser, positive
from data_prep.dataset import Dataset, load_dataset
from data_prep.sources import kind_of
from data_prep.sources.corpus import Corpus, Pair, require_folder
from data_prep.text import bpe
from data_prep.text.clean import clean, normalise_space
from data_prep.text.split import split
from data_prep.text.tokenise import available_processors, tokenise
from scripts.common.errors import UserError, run_command
from scripts.common.files import atomic_folder, write_lines


def prepare(dataset: Dataset, *, raw: Path, out: Path, workers: int) -> dict[str, Any]:
    """Fill ``out``, all or nothing; returns what counts.json says."""
    check_out(out, mark="counts.json")
    require_folder(raw)
    _progress(f"reading {raw}")
    corpus = kind_of(dataset).read(dataset, raw)
    dropped: Counter[str] = Counter()
    parts = _clean_and_split(dataset, corpus, dropped)
    _check_counts(dataset, parts)
    counts: dict[str, Any] = {
        "dataset": dataset.name,
        "source": corpus.report,
        "pairs found": sum(map(len, corpus.parts.values())),
        "pairs dropped": dict(dropped),
        "pairs": {name: len(pairs) for name, pairs in parts.items()},
        "words": {},
        "tokens": {},
        "BPE units": {},
    }
    with atomic_folder(out) as folder:
        tokenised: dict[tuple[str, str], list[str]] = {}
        for name, pairs in parts.items():
            for side, language in enumerate(dataset.languages):
                lines = [pair[side] for pair in pairs]
                _progress(f"tokenising {name}.{language}: {len(lines):,} lines")
                tokens = tokenise(lines, language=language, escape=dataset.tokenise.escape, workers=workers)
                tokenised[name, language] = tokens
                counts["words"][f"{name}.{language}"] = _words(lines)
                counts["tokens"][f"{name}.{language}"] = _words(tokens)
                if name != "train":
                    write_lines(folder / "raw" / f"{name}.{language}", lines)
        _progress(f"learning {dataset.bpe.merges:,} BPE merges on train")
        training_text = [line for language in dataset.languages for line in tokenised["train", language]]
        codes = bpe.learn(training_text, merges=dataset.bpe.merges)
        counts["BPE merges"] = bpe.count_merges(codes)
        write_lines(folder / "codes", codes.strip("\n").split("\n"))
        _progress("applying them")
        for (name, language), tokens in tokenised.items():
            units = bpe.apply(tokens, codes=codes, workers=workers)
            counts["BPE units"][f"{name}.{language}"] = _words(units)
            write_lines(folder / f"{name}.{language}", units)
        write_lines(folder / "counts.json", [json.dumps(counts, indent=2, ensure_ascii=False)])
    return counts


def _clean_and_split(dataset: Dataset, corpus: Corpus, dropped: Counter[str]) -> dict[str, list[Pair]]:
    """Clean what trains. Valid and test sets that come as such keep every line: scores on them must compare."""
    options, rule = dataset.clean, dataset.split
    pool = "all" if "all" in corpus.parts else "train"
    cleaned = clean(
        corpus.parts[pool],
        min_words=options.min_words,
        max_words=options.max_words,
        max_ratio=options.max_ratio,
        deduplicate=options.deduplicate,
        dropped=dropped,
    )
    if not cleaned:
        raise UserError(
            f"empty corpus: of {len(corpus.parts[pool])} pairs none is left after cleaning "
            f"({', '.join(f'{reason}: {count}' for reason, count in dropped.items()) or 'there were none'}); "
            f"look at the raw text and at clean in {dataset.file}"
        )
    if pool == "all":
        if rule is None:
            raise UserError(f"{dataset.file}: the key split is missing; it says how a corpus in one piece is parted")
        parts = split(
            cleaned,
            side=dataset.languages.index(rule.by),
            valid_percent=rule.valid_percent,
            test_percent=rule.test_percent,
            dropped=dropped,
        )
    else:
        given = {
            name: [(normalise_space(source), normalise_space(target)) for source, target in pairs]
            for name, pairs in corpus.parts.items()
        }
        parts = {**given, "train": cleaned}
    for name, pairs in parts.items():
        if not pairs:
            raise UserError(
                f"empty split: {name} has no pairs ({', '.join(f'{n} {len(p)}' for n, p in parts.items())}); "
                "give more text, or your own train, valid and test files"
            )
    return parts


def _check_counts(dataset: Dataset, parts: dict[str, list[Pair]]) -> None:
    """Stop where the counts are not those the dataset records."""
    if dataset.expected is None:
        return
    for name, pairs in parts.items():
        expected = getattr(dataset.expected, name)
        slack = int(expected * dataset.expected.tolerance)
        if abs(len(pairs) - expected) > slack:
            range_ = f"{expected}" if slack == 0 else f"{expected - slack} to {expected + slack}"
            raise UserError(
                f"{name}: got {len(pairs)} pairs, expected {range_} ({dataset.file}: expected); "
                "the raw text is not that of the recorded run: download it again, or, "
                "if it is what you mean to use, change the numbers in a copy of the file"
            )


def _words(lines: list[str]) -> int:
    return sum(len(line.split()) for line in lines)


def _progress(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message} ...", flush=True)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--raw", metavar="DIR", type=Path, required=True, help="folder that download.py wrote")
    parser.add_argument(
        "--workers", metavar="N", type=positive, default=available_processors(), help="processes (default: one a core)"
    )
    arguments = parser.parse_args()
    dataset = load_dataset(arguments.dataset)
    counts = prepare(dataset, raw=arguments.raw, out=arguments.out, workers=arguments.workers)
    for reason, count in counts["pairs dropped"].items():
        print(f"dropped {count:,} of {counts['pairs found']:,} pairs: {reason}")
    print(f"{arguments.out}: " + ", ".join(f"{name} {count:,}" for name, count in counts["pairs"].items()) + " pairs")


if __name__ == "__main__":
    run_command(main)
