"""A table of the paper beside our results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.terminal import aligned
from scripts.config import load_config
from scripts.tables import cells
from scripts.tables.published import CONFIGS, Column, Figure, Row, Table
from scripts.tables.records import diverged_after, lookup, read_record, signatures

DIVERGED = "diverges"
RATIOS_OF = "speed.sentences_per_second.mean"
"""The column for which the table has ratios to the baseline; a record has its ratio in speed.ratio."""


@dataclass(frozen=True)
class Cell:
    """A value of the paper, and ours."""

    column: Column
    published: Figure | None  # the paper's value, if it has one
    run: str | None  # the configuration that measures it, <folder>/<model>; None for values of other papers
    record: Mapping[str, Any] | None  # of the run; None if it has not been started
    row: Row
    compared: Row | None  # the row of the baseline of speeds

    @property
    def seeds(self) -> tuple[int, int]:
        """Number of seeds with the value (or, if it is not one of seeds, with a training), and of planned seeds."""
        return self._count or len(lookup(self.record, "seeds") or {}), len(lookup(self.record, "config.seeds") or [])

    @property
    def _count(self) -> Any:
        return lookup(self.record, f"{self.column.value.rpartition('.')[0]}.n")  # None if the value is not one of seeds

    @property
    def ours(self) -> Figure | None:
        """Our value from the record; None if it has not been measured."""
        value = lookup(self.record, self.column.value)
        if value is None:
            return None if diverged_after(self.record) is None else Figure(None, word=DIVERGED)
        std = lookup(self.record, self.column.std or "") if self._count != 1 else None  # one seed has no deviation
        return Figure(value / self.column.scale, None if std is None else std / self.column.scale)

    @property
    def ratio(self) -> tuple[float | None, float | None]:
        """Speed over the baseline's: the paper's ratio, and ours."""
        if self.column.value != RATIOS_OF:
            return None, None
        speed = self.published.value if self.published else None
        baseline = self.compared.figures.get(self.column.key) if self.compared else None
        paper = speed / baseline.value if speed is not None and baseline and baseline.value else None
        ours = 1.0 if self.row is self.compared else lookup(self.record, "speed.ratio")
        return paper, None if lookup(self.record, RATIOS_OF) is None else ours


class Measured:
    """A table of the paper beside the run records of a work folder."""

    def __init__(self, table: Table, work: Path) -> None:
        """Read the records.

        Raises:
            UserError: a record.json is not a record.
        """
        self.table = table
        self.records: dict[str, dict[str, Any]] = {}
        """The existing records by <folder>/<model>, in the order of the rows."""
        self.outdated: list[str] = []
        """The runs whose record has other settings than the configuration has now, apart from the precision."""
        for run in dict.fromkeys(self._run(row, column) for row in table.rows for column in table.columns):
            config = load_config(CONFIGS / f"{run}.yaml") if run else None
            if config and (path := work / config.dataset_name / config.name / "record.json").exists():
                self.records[str(run)] = record = read_record(path)
                if record["config"] | {"precision": None} != config.merged() | {"precision": None}:
                    self.outdated.append(str(run))
        speeds = (lookup(record, "speed.baseline.model") for record in self.records.values())
        self.baseline: str | None = next(filter(None, speeds), None)
        """The model that the speeds of the runs were compared with."""
        compared = next((row for row in table.rows if self.baseline and row.config == self.baseline), None)
        self.cells = [[self._cell(row, column, compared) for column in table.columns] for row in table.rows]
        """A list for each row, in the order of the columns."""

    def _run(self, row: Row, column: Column) -> str | None:
        config = self.table.config(row, column)
        return None if config is None else f"{config.parent.name}/{config.stem}"

    def _cell(self, row: Row, column: Column, compared: Row | None) -> Cell:
        run = self._run(row, column)
        return Cell(column, row.figures.get(column.key), run, self.records.get(run or ""), row, compared)

    def columns(self) -> list[cells.Column]:
        """Return for each heading the paper's value and ours, and for speeds the ratios to the baseline."""
        notes, columns = self._notes(), list[cells.Column]()

        def add(heading: str, name: str, content: Sequence[cells.Cell], group: str = "") -> None:
            columns.append(cells.Column(heading, name, content, group))

        names = [row.name + (f" [{notes.index(row.note) + 1}]" if row.note else "") for row in self.table.rows]
        add("Model", "model", names)
        for column, measured in zip(self.table.columns, zip(*self.cells, strict=True), strict=True):
            key = f"{column.key}_millions" if column.value == "parameters" else column.key
            published = [_number(cell.published, column, column.digits) for cell in measured]
            add("paper", f"{key}_paper", published, column.heading)
            add("ours", f"{key}_ours", [_ours(cell) for cell in measured], column.heading)
            for position, source in enumerate(("paper", "ours") if column.value == RATIOS_OF else ()):
                ratios = [cell.ratio[position] for cell in measured]
                numbers = [None if ratio is None else cells.Number(ratio) for ratio in ratios]
                add(source, f"{key}_ratio_{source}", numbers, "ratio")
        return columns

    def remarks(self, options: str) -> list[str]:
        """Return the lines below the table.

        They are the notes, the baseline of speeds, the number of measured values, the commands of missing runs with
        ``options``, and the signatures of the records.
        """
        remarks = [self.table.note] if self.table.note else []
        remarks += [f"[{number}] {note}" for number, note in enumerate(self._notes(), 1)]
        if self.baseline and any(column.value == RATIOS_OF for column in self.table.columns):
            remarks.append(
                f"Ratios are to the speed of {self.baseline}; ours to its speed in the same run, on the same machine."
            )
        trained = [cell for row in self.cells for cell in row if cell.run is not None]
        missing = [cell.run for cell in trained if cell.ours is None]
        of_all = f"{len(trained)} values that are trained here have been measured."
        remarks.append(f"{len(trained) - len(missing)} of the {of_all} The others:" if missing else f"All {of_all}")
        remarks += [f"python -m scripts.reproduce configs/{run}.yaml{options}" for run in dict.fromkeys(missing)]
        remarks += [f"{run} was run with other settings than configs/{run}.yaml has now." for run in self.outdated]
        for record in self.records.values():
            remarks += ["", *signatures(record)]
        return remarks

    def _notes(self) -> list[str]:
        return [row.note for row in self.table.rows if row.note]

    def as_text(self, options: str) -> str:
        """Return the table for a terminal, with the remarks below it."""
        title = f"Table {self.table.number}: {self.table.title}"
        return "\n".join(
            [title, "", *aligned(cells.as_grid(self.columns()), left=1, rule=True), "", *self.remarks(options)]
        )


def _number(figure: Figure | None, column: Column, digits: int, note: str = "") -> cells.Cell:
    if figure is None or figure.value is None:
        words = [figure.word or "", f"({note})" if note else ""] if figure else []
        return cells.Absent(" ".join(filter(None, words))) if words else None
    unit = "M" if column.value == "parameters" else ""
    return cells.Number(figure.value, f".{digits}f", std=figure.std, unit=unit, note=note)


def _ours(cell: Cell) -> cells.Cell:
    """Return our value, with one digit more than the paper's and at least two, or the reason that there is none."""
    (scored, planned), digits = cell.seeds, cell.column.digits
    if cell.run and not cell.ours:
        return cells.Absent("not run" if cell.record is None else "not yet")
    note = f"{scored} of {planned} seeds" if cell.column.value.startswith("summary.") and scored < planned else ""
    return _number(cell.ours, cell.column, max(digits, min(digits + 1, 2)), note)
