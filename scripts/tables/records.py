"""Run records as rows of a table of their own, whatever the dataset, and what each score was measured with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import read_json
from data_prep.common.terminal import aligned
from scripts.scoring.score_names import FAMILY, KEYS, NAMES

EMPTY = "-"
_NEEDED = {"model", "dataset", "config", "parameters", "seeds", "summary"}


def read_record(path: Path) -> dict[str, Any]:
    """A run record."""
    record = read_json(path)
    if not isinstance(record, dict) or not record.keys() >= _NEEDED:
        raise UserError(f"{path} is not a run record; expected work/<dataset>/<model>/record.json of scripts.reproduce")
    return record


def lookup(record: Mapping[str, Any] | None, path: str) -> Any:
    """Return what stands at a dotted path; None where there is nothing."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def diverged_after(record: Mapping[str, Any] | None) -> int | None:
    """After how many updates the training of a seed diverged; None if none did."""
    updates = [lookup(seed, "training.diverged") for seed in (lookup(record, "seeds") or {}).values()]
    return next((update for update in updates if update is not None), None)


def metric(record: Mapping[str, Any]) -> str:
    """Return the kind of score that a run is judged by: bleu, rouge or perplexity."""
    return FAMILY[lookup(record, "config.score.metric") or "bleu"]


def spread(values: Mapping[str, Any] | None, form: str = ".2f") -> str:
    """Mean and standard deviation; the figure alone where there is one; a dash where there is none."""
    if not values or values.get("mean") is None:
        return EMPTY
    text = format(values["mean"], form)
    several = values.get("n") != 1 and values.get("std") is not None
    return f"{text} ± {values['std']:{form}}" if several else text


def tested(values: Mapping[str, Any] | None) -> str:
    """The best seed's figure, and in brackets mean and deviation over the seeds where there are several."""
    if not values or values.get("best") is None:
        return EMPTY
    return f"{values['best']:.2f}" + (f" ({spread(values)})" if values.get("n") != 1 else "")


def number(record: Mapping[str, Any] | None, path: str, form: str) -> str:
    """Return the figure at a dotted path; a dash where there is none."""
    value = lookup(record, path)
    return EMPTY if value is None else format(value, form)


def grid(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Header and rows of records of one metric: those of its scores that any of them has."""
    kind = metric(records[0])
    keys = KEYS[kind]
    shown = [key for key in keys if any(lookup(record, f"summary.test.{key}") for record in records)] or [keys[0]]
    timed = any(record.get("speed") for record in records)
    chosen = lookup(records[0], "config.score.metric")
    chosen = chosen if chosen in NAMES else keys[0]  # of ROUGE the first
    lines = []
    for record in records:
        line = {"model": record["model"], "data": record["dataset"], "parameters": number(record, "parameters", ",d")}
        line["seeds"] = str(len(record["seeds"]))
        line[f"valid {NAMES[chosen]}"] = spread(lookup(record, f"summary.valid.{chosen}"))
        line |= {NAMES[key]: tested(lookup(record, f"summary.test.{key}")) for key in shown}
        if kind != "perplexity":
            line["sentences/s"] = number(best_seed(record), "generation.sentences_per_second", ".1f")
        if timed:
            line["speed, sentences/s"] = spread(lookup(record, "speed.sentences_per_second"), ".1f")
            line["x baseline"] = number(record, "speed.ratio", ".2f")
        lines.append(line)
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def best_seed(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The seed whose test figures stand in the table; None if none was chosen yet."""
    return record["seeds"].get(str(record.get("best_seed")))


def signatures(record: Mapping[str, Any]) -> list[str]:
    """Return how the scores and the speed of one record came about, a line each."""
    scores, updates = lookup(best_seed(record), "test"), diverged_after(record)
    if scores:
        backend = ",".join(f"{op}={name}" for op, name in (record.get("backend") or {}).items()) or "unknown"
        lines = [f"{record['model']}: {scores['signature']}|backend:{backend}"]
        for key in KEYS[metric(record)]:
            if signature := lookup(scores, f"details.{key}.signature"):
                lines.append(f"  {NAMES[key]} {signature}")
    else:
        state = "not scored yet" if updates is None else f"diverged after {updates:,} updates"
        lines = [f"{record['model']}: {state}"]
    if settings := lookup(record, "speed.settings"):
        parts = [f"{name}:{value}" for name, value in settings.items() if value is not None]
        parts += [] if lookup(record, "speed.trained") else ["random weights"]
        if other := lookup(record, "speed.baseline"):
            parts.append(f"baseline:{other['model']}")
        lines.append("  speed " + "|".join(parts))
    return lines


def as_text(records: Sequence[Mapping[str, Any]]) -> str:
    """The whole table as aligned text; scores of different metrics do not stand under one another."""
    blocks: list[str] = []
    for kind in KEYS:
        if some := [record for record in records if metric(record) == kind]:
            blocks += [*aligned(grid(some), left=2, rule=True), ""]
    if any(len(record["seeds"]) > 1 for record in records):
        note = "Scores on test: the seed that was best on validation (mean ± standard deviation over the seeds)."
        blocks += [note, ""]
    return "\n".join([*blocks, *(line for record in records for line in signatures(record))])
