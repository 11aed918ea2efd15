"""Run records as rows of one table, for any mix of datasets, and the signatures of their scores."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import read_json
from data_prep.common.terminal import aligned
from scripts.scoring.score_names import FAMILY, KEYS, NAMES
from scripts.scoring.selection import over
from scripts.tables.cells import Column, Number, Table, as_grid, over_seeds

_NEEDED = {"model", "dataset", "config", "parameters", "seeds", "summary"}


def read_record(path: Path) -> dict[str, Any]:
    """Read a run record.

    Raises:
        UserError: the file cannot be read, or is not a run record.
    """
    record = read_json(path)
    if not isinstance(record, dict) or not record.keys() >= _NEEDED:
        raise UserError(f"{path} is not a run record; expected work/<dataset>/<model>/record.json of scripts.reproduce")
    return record


def lookup(record: Mapping[str, Any] | None, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested mapping with their dotted paths; ``name`` is the path of ``value`` itself."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value


def diverged_after(record: Mapping[str, Any] | None) -> int | None:
    """Return the update at which the first diverged training diverged; None if none did."""
    updates = [lookup(seed, "training.diverged") for seed in (lookup(record, "seeds") or {}).values()]
    return next((update for update in updates if update is not None), None)


def metric(record: Mapping[str, Any]) -> str:
    """Return the kind of a run's scores: bleu, rouge or perplexity."""
    return FAMILY[lookup(record, "config.score.metric") or "bleu"]


def tested(values: Mapping[str, Any] | None) -> Number | None:
    """Return the best seed's score, with mean and deviation over the seeds if there are several."""
    if not values or values.get("best") is None:
        return None
    seeds = over_seeds(values)
    return (
        Number(values["best"])
        if values.get("n") == 1 or not seeds
        else Number(values["best"], mean=seeds.value, std=seeds.std)
    )


def number(record: Mapping[str, Any] | None, path: str, form: str, scale: float = 1.0) -> Number | None:
    """Return the number at a dotted path; None if there is none.

    Args:
        record: a record, or the part of one that ``path`` starts from.
        path: keys joined by dots.
        form: Python's format specification for printing.
        scale: the number is divided by it.
    """
    value = lookup(record, path)
    return None if value is None else Number(value / scale if scale != 1.0 else value, form)


def table(records: Sequence[Mapping[str, Any]], *, costs: bool) -> list[Column]:
    """Return a row for each record, with a column for each score that any of them has.

    Args:
        records: runs with scores of one kind.
        costs: add losses, time and speed of the trainings.
    """
    kind = metric(records[0])
    keys = KEYS[kind]
    shown = [key for key in keys if any(lookup(record, f"summary.test.{key}") for record in records)] or [keys[0]]
    chosen = lookup(records[0], "config.score.metric")
    chosen = chosen if chosen in NAMES else keys[0]  # "rouge" stands for ROUGE-1, 2 and L
    bests = [best_seed(record) for record in records]

    def scores(subset: str, key: str) -> list[Any]:
        return [lookup(record, f"summary.{subset}.{key}") for record in records]

    columns = [
        Column("model", "model", [record["model"] for record in records]),
        Column("data", "data", [record["dataset"] for record in records]),
        Column("parameters", "parameters", [number(record, "parameters", ",d") for record in records]),
        Column("seeds", "seeds", [Number(len(record["seeds"]), "d") for record in records]),
        Column(f"valid {NAMES[chosen]}", f"valid_{chosen}", [over_seeds(values) for values in scores("valid", chosen)]),
        *(Column(NAMES[key], key, [tested(values) for values in scores("test", key)]) for key in shown),
    ]
    if kind != "perplexity":
        speeds = [number(best, "generation.sentences_per_second", ".1f") for best in bests]
        columns.append(Column("sentences/s", "test_sentences_per_second", speeds))
    if any(record.get("speed") for record in records):
        speeds = [over_seeds(lookup(record, "speed.sentences_per_second"), ".1f") for record in records]
        columns.append(Column("speed, sentences/s", "sentences_per_second", speeds))
        columns.append(
            Column("x baseline", "speed_ratio", [number(record, "speed.ratio", ".2f") for record in records])
        )
    return [*columns, *training_costs(records)] if costs else columns


def training_costs(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return columns of the trainings: updates, loss, time and speed, mean and deviation over the seeds."""

    def column(heading: str, name: str, key: str, form: str, scale: float = 1.0) -> Column:
        return Column(heading, name, [over_trainings(record, key, form, scale) for record in records])

    updates = [max(_of_trainings(record, "updates"), default=None) for record in records]
    return [
        Column("updates", "updates", [None if value is None else Number(value, ",d") for value in updates]),
        column("lowest validation loss", "best_valid_loss", "best_valid_loss", ".3f"),
        column("training, minutes", "training_minutes", "seconds", ".1f", 60),
        column("training, tokens/s", "training_tokens_per_second", "tokens_per_second", ",.0f"),
    ]


def over_trainings(record: Mapping[str, Any], key: str, form: str, scale: float) -> Number | None:
    """Return mean and deviation over the seeds of a number that their trainings left; None if none did.

    Args:
        record: a run record.
        key: the number's name in a seed's ``training``.
        form: Python's format specification for printing.
        scale: the number is divided by it.
    """
    values = [value / scale for value in _of_trainings(record, key)]
    return over_seeds(over(values), form) if values else None


def _of_trainings(record: Mapping[str, Any], key: str) -> list[Any]:
    values = (lookup(seed, f"training.{key}") for seed in record["seeds"].values())
    return [value for value in values if value is not None]


def by_metric(records: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Group the records by the kind of their scores, so that a column has scores of one kind."""
    groups = ([record for record in records if metric(record) == kind] for kind in KEYS)
    return [group for group in groups if group]


def best_seed(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part of the seed whose test scores the table shows; None if none has been chosen."""
    return record["seeds"].get(str(record.get("best_seed")))


def signatures(record: Mapping[str, Any]) -> list[str]:
    """Return the settings behind the scores and the speed of one record, a line each."""
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
        if baseline := lookup(record, "speed.baseline"):
            parts.append(f"baseline:{baseline['model']}")
        lines.append("  speed " + "|".join(parts))
    return lines


def as_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of all records as aligned text, and below them the signatures of their scores."""
    blocks: list[str] = []
    for group in by_metric(records):
        blocks += [*aligned(as_grid(table(group, costs=False)), left=2, rule=True), ""]
    if any(len(record["seeds"]) > 1 for record in records):
        note = "Scores on test: the seed that was best on validation (mean ± standard deviation over the seeds)."
        blocks += [note, ""]
    return "\n".join([*blocks, *(line for record in records for line in signatures(record))])


def as_tables(records: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables that are written to files: one for each kind of scores."""
    return [table(group, costs=True) for group in by_metric(records)]
