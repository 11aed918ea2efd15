"""Write report.md: the sources, steps and sizes of a corpus, with which readers can compare theirs."""

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
    """Write ``out/report.md`` from the records of the stages in ``out``; returns its path."""
    counts = read_json(out / "prepared" / "counts.json")
    manifest = read_json(out / "raw" / "manifest.json")
    log = (out / "binarised" / "preprocess.log").read_text(encoding="utf-8", errors="replace")
    lines = [f"# {dataset.name}", "", " ".join(dataset.about.split()), ""]
    lines += [f"Licence and terms: {' '.join(dataset.licence.split()) or 'see the source'}", ""]
    lines += _sources(manifest, counts["source"]) + _steps(counts["steps"])
    expected = [
        (
            entry["after"],
            entry["split"],
            entry["got"],
            entry["expected"],
            "yes" if entry["holds"] else "NO",
            entry["status"],
        )
        for entry in counts["expected"]
    ]
    if expected:
        lines += _table("Expected counts", ("after", "split", "got", "expected", "met", "source"), expected)
    binarised = {name: (int(tokens), unknown) for name, tokens, unknown in _BINARISED.findall(log)}
    files = [
        (name, record["lines"], *binarised.get(name, ("", "")), f"`{record['sha256']}`")
        for name, record in counts["files"].items()
    ]
    header = ("prepared", "lines", "tokens (with one end of sentence per line)", "unknown", "SHA-256")
    write_lines(out / "report.md", lines + _table("Sizes, as binarised, and checksums", header, files))
    return out / "report.md"


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a heading and a Markdown table; numbers have thousands separators."""
    body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return [f"## {title}", "", markdown_table(header, body), ""]


def _sources(manifest: dict[str, Any], source: dict[str, Any]) -> list[str]:
    rows = [(name, record["bytes"], f"`{record['sha256']}`") for name, record in manifest["files"].items()]
    notes = {key: value for key, value in manifest.items() if key not in ("dataset", "kind", "files")} | source
    listed = yaml.safe_dump(notes, sort_keys=False, allow_unicode=True, width=10_000).splitlines()
    return _table("Sources", ("file", "bytes", "SHA-256"), rows) + (["```", *listed, "```", ""] if notes else [])


def _steps(steps: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for entry in steps:
        name = entry["step"] + (f" ({', '.join(entry['languages'])})" if "languages" in entry else "")
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in entry.get("dropped", {}).items())
        moved = ", ".join(f"{split} {lines:,}" for split, lines in entry.get("moved", {}).items())
        learnt = next((f"{entry[key]:,} {key} in {entry['codes']}" for key in ("merges", "units") if key in entry), "")
        remarks = "; ".join(filter(None, (reasons, moved and f"gives {moved}", learnt)))
        rows.append((name, entry["split"], entry.get("in", ""), entry.get("out", ""), remarks))
    return _table("Steps", ("step", "split", "lines in", "lines out", "dropped lines and remarks"), rows)
