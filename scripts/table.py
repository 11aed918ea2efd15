"""Print a row of the results table for each run record, and under the table what each score was measured with."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.errors import UserError, run_command
from scripts.common.files import read_json
from scripts.common.terminal import aligned

HEADER = ("model", "data", "parameters", "paper", "BLEU (tokenised)", "sacreBLEU", "sentences/s")
EMPTY = "-"


def row(record: dict[str, Any]) -> list[str]:
    """The cells of one record; what it does not have is a dash."""

    def cell(value: Any, form: str) -> str:
        return EMPTY if value is None else format(value, form)

    config, scores = record["config"], record["scores"] or {}
    generation = record["generation"] or {}
    return [
        record["model"],
        config["dataset"],
        cell(record["parameters"], ",d"),
        cell(config["paper"].get("bleu"), ""),
        cell(scores.get("tokenised", {}).get("bleu"), ".2f"),
        cell(scores.get("sacrebleu", {}).get("bleu"), ".2f"),
        cell(generation.get("sentences_per_second"), ".1f"),
    ]


def signatures(record: dict[str, Any]) -> list[str]:
    """How the scores of one record came about, a line each."""
    scores = record["scores"]
    if scores is None:
        return [f"{record['model']}: not scored yet"]
    backend = ",".join(f"{op}={name}" for op, name in (record["backend"] or {}).items()) or "unknown"
    return [
        f"{record['model']}: {scores['signature']}|backend:{backend}",
        f"  tokenised {scores['tokenised']['signature']}",
        f"  sacreBLEU {scores['sacrebleu']['signature']}",
    ]


def table(records: Sequence[dict[str, Any]]) -> str:
    """The whole table as aligned text."""
    lines = aligned([HEADER, *(row(record) for record in records)], left=2, rule=True)
    return "\n".join([*lines, "", *(line for record in records for line in signatures(record))])


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
