"""The cells of a table: the published figure, and beside it what the run records of a work folder say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.pipeline.config import load_config
from scripts.reproduce.record import diverged_after, lookup, read_record
from scripts.tables.published import CONFIGS, Column, Figure, Row, Table

DIVERGED = "diverges"


RATIOS_OF = "speed.sentences_per_second.mean"
"""The column that ratios to the baseline are given for; a record has its own in speed.ratio."""


@dataclass(frozen=True)
class Cell:
    """One figure of the paper and ours."""

    column: Column
    published: Figure | None  # as printed; None where the paper has none
    ours: Figure | None = None  # None where nothing was measured
    # the configuration that measures it, <folder>/<model>; None for the literature's figures and empty cells
    run: str | None = None
    has_record: bool = False  # whether the run has been begun
    # how many have the figure (were trained, where it is not one of seeds), and of how many; (0, 0) without a record
    seeds: tuple[int, int] = (0, 0)
    ratio: tuple[float | None, float | None] = (None, None)  # to the speed of the baseline, the paper's and ours

    @property
    def missing(self) -> bool:
        return self.run is not None and self.ours is None


class Runs:
    """The run records of a work folder, each read once."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.outdated: list[str] = []
        """The runs read whose record is of other settings than their configuration has now, precision aside."""
        self._records: dict[str, dict[str, Any] | None] = {}

    def record(self, run: str) -> dict[str, Any] | None:
        """The record of the run of configs/``run``.yaml; None where it has not been begun.

        Raises:
            UserError: the file is there and is not a record.
        """
        if run not in self._records:
            config = load_config(CONFIGS / f"{run}.yaml")
            path = self.work / config.dataset / config.name / "record.json"
            found = self._records[run] = read_record(path) if path.exists() else None
            if found and found["config"] | {"precision": None} != config.merged() | {"precision": None}:
                self.outdated.append(run)
        return self._records[run]

    def of(self, table: Table) -> list[dict[str, Any]]:
        """The records of a table's runs that there are, in the order of its rows."""
        names = dict.fromkeys(
            name for row in table.rows for column in table.columns if (name := run_of(table, row, column))
        )
        return [record for name in names if (record := self.record(name)) is not None]


def run_of(table: Table, row: Row, column: Column) -> str | None:
    """The configuration whose run measures a cell, <folder>/<model>."""
    config = table.config(row, column)
    return None if config is None else f"{config.parent.name}/{config.stem}"


def baseline(table: Table, runs: Runs) -> str | None:
    """The model whose speed those of a table's runs were compared with; None if none was."""
    return next((model for record in runs.of(table) if (model := lookup(record, "speed.baseline.model"))), None)


def cells(table: Table, runs: Runs) -> list[list[Cell]]:
    """Row by row, the cells of a table in the order of its columns."""
    model = baseline(table, runs)
    compared = next((row for row in table.rows if model is not None and row.config == model), None)
    return [[_cell(table, row, column, runs, compared) for column in table.columns] for row in table.rows]


def _cell(table: Table, row: Row, column: Column, runs: Runs, compared: Row | None) -> Cell:
    published, run = row.figures.get(column.key), run_of(table, row, column)
    record = runs.record(run) if run else None
    return Cell(
        column,
        published,
        ours=_ours(column, record),
        run=run,
        has_record=record is not None,
        seeds=(_count(column, record) or len(lookup(record, "seeds") or {}), len(lookup(record, "config.seeds") or [])),
        ratio=(_published_ratio(published, column, compared), _our_ratio(column, record, row is compared)),
    )


def _ours(column: Column, record: Mapping[str, Any] | None) -> Figure | None:
    value = lookup(record, column.value)
    if value is not None:
        std = lookup(record, column.std) if column.std and _count(column, record) != 1 else None  # one has none
        return Figure(value / column.scale, None if std is None else std / column.scale)
    return None if diverged_after(record) is None else Figure(None, word=DIVERGED)


def _count(column: Column, record: Mapping[str, Any] | None) -> int | None:
    """Return how many seeds a figure is of; None if it is not one of seeds."""
    count: int | None = lookup(record, f"{column.value.rpartition('.')[0]}.n")
    return count


def _our_ratio(column: Column, record: Mapping[str, Any] | None, is_baseline: bool) -> float | None:
    if column.value != RATIOS_OF or lookup(record, RATIOS_OF) is None:
        return None
    return 1.0 if is_baseline else lookup(record, "speed.ratio")


def _published_ratio(published: Figure | None, column: Column, compared: Row | None) -> float | None:
    if column.value != RATIOS_OF or published is None or published.value is None or compared is None:
        return None
    other = compared.figures.get(column.key)
    return published.value / other.value if other and other.value else None
