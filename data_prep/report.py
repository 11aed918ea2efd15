"""report.md: what a reader needs to judge a corpus, and to tell whether his own is the same."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from data_prep.common.files import read_json, write_lines
from data_prep.common.terminal import markdown_table
from data_prep.dataset import Dataset

_BINARISED = re.compile(r"(\S+): \d+ sents, (\d+) tokens, (\S+%) replaced")


def write_report(dataset: Dataset, out: Path) -> Path:
    """Write ``out/report.md`` from what the stages left in ``out``; returns its path."""
    counts = read_json(out / "prepared" / "counts.json")
    manifest = read_json(out / "raw" / "manifest.json")
    log = (out / "binarised" / "preprocess.log").read_text(encoding="utf-8", errors="replace")
    lines = [f"# {dataset.name}", "", " ".join(dataset.about.split()), ""]
    lines += [f"Licence and terms: {' '.join(dataset.licence.split()) or 'see the source'}", ""]
    lines += _sources(manifest, counts["source"]) + _steps(counts["steps"])
    expected = [
        (each["after"], each["split"], each["got"], each["expected"], "yes" if each["holds"] else "NO", each["status"])
        for each in counts["expected"]
    ]
    if expected:
        lines += _table("Known counts", ("after", "split", "got", "expected", "met", "from where"), expected)
    binarised = {name: (int(tokens), unknown) for name, tokens, unknown in _BINARISED.findall(log)}
    files = [
        (name, each["lines"], *binarised.get(name, ("", "")), f"`{each['sha256']}`")
        for name, each in counts["files"].items()
    ]
    header = ("prepared", "lines", "tokens (with one end of sentence a line)", "unknown", "SHA-256")
    write_lines(out / "report.md", lines + _table("Sizes, as binarised, and checksums", header, files))
    return out / "report.md"


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A heading and a Markdown table; numbers with thousands marked."""
    body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return [f"## {title}", "", markdown_table(header, body), ""]


def _sources(manifest: dict[str, Any], source: dict[str, Any]) -> list[str]:
    rows = [(name, each["bytes"], f"`{each['sha256']}`") for name, each in manifest["files"].items()]
    notes = {key: value for key, value in manifest.items() if key not in ("dataset", "kind", "files")} | source
    said = yaml.safe_dump(notes, sort_keys=False, allow_unicode=True, width=10_000).splitlines()
    return _table("Sources", ("file", "bytes", "SHA-256"), rows) + (["```", *said, "```", ""] if notes else [])


def _steps(steps: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for entry in steps:
        name = entry["step"] + (f" ({', '.join(entry['languages'])})" if "languages" in entry else "")
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in entry.get("dropped", {}).items())
        moved = ", ".join(f"{split} {lines:,}" for split, lines in entry.get("moved", {}).items())
        learnt = next((f"{entry[key]:,} {key} in {entry['codes']}" for key in ("merges", "units") if key in entry), "")
        said = "; ".join(split for split in (reasons, moved and f"gives {moved}", learnt) if split)
        rows.append((name, entry["split"], entry.get("in", ""), entry.get("out", ""), said))
    return _table("Steps", ("step", "split", "lines in", "lines out", "dropped, and why"), rows)
