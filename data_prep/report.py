"""report.md: what a reader needs to judge a corpus, and to tell whether his own is the same."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from data_prep.binarise import SPECIAL_TYPES, dictionary
from data_prep.dataset import SPLITS, Dataset
from scripts.common.files import read_json, read_lines, write_lines
from scripts.common.terminal import markdown_table

NAME = "report.md"
EXAMPLES = 5
SEED = 1
_UNKNOWN = re.compile(r": \d+ sents, (\d+) tokens, (\S+)% replaced")


def write_report(dataset: Dataset, out: Path) -> Path:
    """Write ``out/report.md`` from what the stages left in ``out``; returns its path."""
    counts = read_json(out / "prepared" / "counts.json")
    lines = [f"# {dataset.name}", "", " ".join(dataset.about.split()), ""]
    lines += [f"Licence and terms: {' '.join(dataset.licence.split()) or 'see the source'}", ""]
    lines += _sources(out, counts) + _steps(counts) + _expected(counts) + _sizes(dataset, out)
    lines += _vocabulary(dataset, out) + _examples(dataset, out, counts) + _digests(counts)
    versions = ", ".join(f"{name} {found or 'absent'}" for name, found in counts["versions"].items())
    lines += ["## Versions", "", versions]
    write_lines(out / NAME, lines)
    return out / NAME


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table and an empty line; numbers with thousands marked."""
    body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return [markdown_table(header, body), ""]


def _sources(out: Path, counts: dict[str, Any]) -> list[str]:
    manifest = read_json(out / "raw" / "manifest.json")
    rows = [(name, each["bytes"], f"`{each['sha256']}`") for name, each in manifest["files"].items()]
    notes = {key: value for key, value in manifest.items() if key not in ("dataset", "kind", "files", "licence")}
    notes |= counts["source"]
    said = yaml.safe_dump(notes, sort_keys=False, allow_unicode=True, width=10_000)
    return [
        *("## Sources", "", *table(("file", "bytes", "SHA-256"), rows)),
        *(("```", *said.splitlines(), "```", "") if notes else ()),
    ]


def _steps(counts: dict[str, Any]) -> list[str]:
    rows = []
    for entry in counts["steps"]:
        name = entry["step"] + (f" ({', '.join(entry['languages'])})" if "languages" in entry else "")
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in entry.get("dropped", {}).items())
        moved = ", ".join(f"{split} {lines:,}" for split, lines in entry.get("moved", {}).items())
        learnt = next((f"{entry[key]:,} {key} in {entry['codes']}" for key in ("merges", "units") if key in entry), "")
        said = "; ".join(split for split in (reasons, moved and f"gives {moved}", learnt) if split)
        rows.append((name, entry["split"], entry.get("in", ""), entry.get("out", ""), said))
    return ["## Steps", "", *table(("step", "split", "lines in", "lines out", "dropped, and why"), rows)]


def _expected(counts: dict[str, Any]) -> list[str]:
    if not counts["expected"]:
        return []
    rows = [
        (each["after"], each["split"], each["got"], each["expected"], "yes" if each["holds"] else "NO", each["status"])
        for each in counts["expected"]
    ]
    return ["## Known counts", "", *table(("after", "split", "got", "expected", "met", "from where"), rows)]


def _sizes(dataset: Dataset, out: Path) -> list[str]:
    log = (out / "binarised" / "preprocess.log").read_text(encoding="utf-8", errors="replace")
    in_order = [(split, language) for language in dataset.languages for split in SPLITS]  # as fairseq reports
    rows = []
    for (split, language), (tokens, unknown) in zip(in_order, _UNKNOWN.findall(log), strict=True):
        with open(out / "prepared" / f"{split}.{language}", "rb") as f:
            lengths = Counter(len(line.split()) for line in f)
        median, most = (_quantile(lengths, share) for share in (0.5, 0.99))
        size = lengths.total(), int(tokens), f"{unknown}%"
        rows.append((split, language, *size, median, most, max(lengths), lengths[0]))
    header = ("split", "language", "lines", "tokens (with one end of sentence a line)", "unknown")
    lengths_of = ("median length", "99%", "longest", "empty lines")
    return ["## Sizes, as binarised, and lengths in tokens", "", *table((*header, *lengths_of), rows)]


def _quantile(histogram: Counter[int], share: float) -> int:
    below = accumulate(histogram[length] for length in sorted(histogram))
    return next(
        length for length, sum in zip(sorted(histogram), below, strict=True) if sum >= share * histogram.total()
    )


def _vocabulary(dataset: Dataset, out: Path) -> list[str]:
    rows = []
    same = dataset.binarise.joined_dictionary  # the same file under both names
    for languages in [dataset.languages] if same else [(language,) for language in dataset.languages]:
        names = [dictionary(dataset, language) for language in languages]
        counts = [int(line.rsplit(" ", 1)[1]) for line in read_lines(out / "binarised" / names[0])]
        seen = [count for count in counts if count > 0]
        rows.append((" = ".join(names), len(counts) + SPECIAL_TYPES, len(seen), seen[-1]))
    return ["## Vocabulary", "", *table(("dictionary", "types in all", "seen", "rarest type's count"), rows)]


def _examples(dataset: Dataset, out: Path, counts: dict[str, Any]) -> list[str]:
    said = ["## Lines drawn at random", ""]
    for split in ("train", "test"):
        total = counts["files"][f"{split}.{dataset.source}"]["lines"]
        chosen = sorted(random.Random(SEED).sample(range(total), min(EXAMPLES, total)))
        sides = []
        for language in dataset.languages:
            with open(out / "prepared" / f"{split}.{language}", "rb") as f:
                lines = (line.decode().rstrip("\n")[:1000] for number, line in enumerate(f) if number in chosen)
                sides.append([f"{language}: {line}" for line in lines])
        for number, *row in zip(chosen, *sides, strict=True):
            said += [f"{split}, line {number + 1:,}", "```", *row, "```"]
    return [*said, ""]


def _digests(counts: dict[str, Any]) -> list[str]:
    rows = [(name, each["lines"], f"`{each['sha256']}`") for name, each in counts["files"].items()]
    return ["## Checksums", "", *table(("prepared", "lines", "SHA-256"), rows)]
