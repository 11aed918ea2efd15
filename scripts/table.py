"""Print a row of the results table for each run record, and under the table what each score was measured with."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.config import METRICS
from scripts.common.errors import UserError, run_command
from scripts.common.files import read_json
from scripts.common.score_names import KEYS, NAMES
from scripts.common.terminal import aligned

EMPTY = "-"
BLEU = ("bleu", "sacrebleu")


def header(metric: str) -> tuple[str, ...]:
    """The columns of a table: scores of different tasks do not stand under one another."""
    return ("model", "data", "parameters", "paper", *(NAMES[key] for key in _keys(metric)), "sentences/s")


def row(record: dict[str, Any]) -> list[str]:
    """The cells of one record; what it does not have is a dash."""

    def cell(value: Any, form: str) -> str:
        return EMPTY if value is None else format(value, form)

    config, scores = record["config"], record["scores"] or {}
    generation = record["generation"] or {}
    metric, paper = _metric(record), config["paper"]
    published = [paper.get(key) for key in (KEYS["rouge"] if metric == "rouge" else ("bleu",))]
    cells = [
        EMPTY if None in published else " / ".join(map(str, published)),
        *(cell(scores.get(key), ".2f") for key in _keys(metric)),
    ]
    speed = cell(generation.get("sentences_per_second"), ".1f")
    return [record["model"], config["dataset"], cell(record["parameters"], ",d"), *cells, speed]


def _keys(metric: str) -> tuple[str, ...]:
    return KEYS["rouge"] if metric == "rouge" else BLEU


def _metric(record: dict[str, Any]) -> str:
    return (record["config"].get("score") or {}).get("metric", "bleu")


def signatures(record: dict[str, Any]) -> list[str]:
    """How the scores of one record came about, a line each."""
    scores = record["scores"]
    if scores is None:
        return [f"{record['model']}: not scored yet"]
    backend = ",".join(f"{op}={name}" for op, name in (record["backend"] or {}).items()) or "unknown"
    measured = [(NAMES[key], scores["details"][key]["signature"]) for key in NAMES if key in scores]
    return [
        f"{record['model']}: {scores['signature']}|backend:{backend}",
        *(f"  {name} {how}" for name, how in measured),
    ]


def table(records: Sequence[dict[str, Any]]) -> str:
    """The whole table as aligned text; two of them where some records are of summaries."""
    blocks = []
    for metric in METRICS:
        rows = [row(record) for record in records if _metric(record) == metric]
        if rows:
            blocks += [*aligned([header(metric), *rows], left=2, rule=True), ""]
    return "\n".join([*blocks, *(line for record in records for line in signatures(record))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORD", help="record.json of a run, in work/")
    arguments = parser.parse_args()
    records = []
    for path in arguments.records:
        record = read_json(path)
        if (
            not isinstance(record, dict)
            or not {"model", "config", "scores", "generation", "parameters"} <= record.keys()
        ):
            raise UserError(f"{path} is not a run record; expected work/<dataset>/<model>/record.json")
        records.append(record)
    print(table(records))


if __name__ == "__main__":
    run_command(main)
