"""The Markdown page of scripts/first_gpu.sh, from the records of its sections."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from scripts.common.terminal import markdown_table

Record = dict[str, Any]
PASSED, FAILED, ABSENT = "passed", "failed", "not run"


def read_junit(report: Path) -> dict[str, Any]:
    """Read what matters of pytest's JUnit report: counts by file, what failed or was skipped and why, and figures.

    A test's figures are the rows that it gave ``record_property``, by table.
    """
    counts: dict[str, dict[str, int]] = {}
    failures, skips = [], set()
    tables: dict[str, list[list[str]]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").split(".")[-1] or case.get("name", "")
        of_file = counts.setdefault(file, {PASSED: 0, FAILED: 0, "skipped": 0})
        for found in case.iter("property"):
            tables.setdefault(found.get("name", ""), []).append(json.loads(found.get("value", "[]")))
        wrong = [node for node in case if node.tag in ("failure", "error")]
        skipped = case.find("skipped")
        of_file[FAILED if wrong else "skipped" if skipped is not None else PASSED] += 1
        if wrong:
            first = (wrong[0].get("message") or wrong[0].text or "").strip().split("\n")[0]
            failures.append(f"{file}::{case.get('name')}: {first}")
        if skipped is not None:
            skips.add(f"{case.get('name', '').split('[')[0]}: {skipped.get('message')}")
    return {"counts": counts, "failures": failures, "skips": sorted(skips), "tables": tables}


HEADERS = {
    "losses": ["20 updates: this device's loss / the CPU's in float32", "update 1", "6", "11", "16"],
    "graphs": ["300 updates as graphs, and one kernel after the other", "losses that are equal"],
    "captured": ["20 updates as graphs and as fairseq makes them", "largest difference of a parameter"],
    "beams": ["beam search", "hypotheses", "equal to the CPU's, token by token"],
}


def markdown(title: str, facts: list[str], records: list[Record]) -> str:
    """Write the page: facts about the machine, a table of all sections, and each section's results."""
    rows = [[f"[{r['title']}](#{anchor(r['title'])})", r["result"], r["time"], r["commit"]] for r in records]
    parts = [f"# {title}", *facts, markdown_table(["section", "result", "time", "commit"], rows)]
    for record in records:
        parts.append(f"## {record['title']}")
        if record["command"]:
            parts.append(f"`{record['command']}`")
        if record["result"] != PASSED:
            parts.append(f"**{record['result']}**: {first_line(record['reason'])}")
            if "\n" in record["reason"]:
                parts.append(block(record["reason"].split("\n")[1:]))
        if record["tests"]:
            parts += tests(record["tests"])
        if record["lines"]:
            parts.append(block(record["lines"]))
    return "\n\n".join(parts) + "\n"


def tests(found: dict[str, Any]) -> list[str]:
    """Write the results of pytest."""
    rows = [[file, *(str(number) for number in counts.values())] for file, counts in sorted(found["counts"].items())]
    parts = [markdown_table(["file", PASSED, FAILED, "skipped"], rows)]
    if found["failures"]:
        parts.append("Failed:\n\n" + "\n".join(f"- `{each[:300]}`" for each in found["failures"]))
    if found["skips"]:
        parts.append("Skipped:\n\n" + "\n".join(f"- {each}" for each in found["skips"]))
    parts += [markdown_table(HEADERS[name], sorted(rows)) for name, rows in found["tables"].items()]
    return parts


def block(lines: list[str]) -> str:
    """Write lines as they were printed."""
    return "```text\n" + "\n".join(lines).strip("\n") + "\n```"


def first_line(text: str) -> str:
    """Return a text's first line."""
    return text.split("\n")[0]


def anchor(title: str) -> str:
    """Return the name by which a page links to a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
