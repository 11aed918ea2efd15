"""A table of the paper beside what was measured here, as text, as Markdown and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.terminal import aligned, markdown_table
from scripts.pipeline.config import load_config
from scripts.reproduce.record import diverged_after, lookup, read_record
from scripts.tables.published import CONFIGS, Column, Figure, Row, Table

EMPTY = "-"
DIVERGED = "diverges"
RATIOS_OF = "speed.sentences_per_second.mean"
"""The column that ratios to the baseline are given for; a record has its own in speed.ratio."""
CSV_HEADER = (
    *("table", "row", "run", "column", "heading", "paper", "paper_std", "ours", "ours_std"),
    *("seeds", "paper_ratio", "our_ratio", "state"),
)


@dataclass(frozen=True)
class Cell:
    """One figure of the paper and ours."""

    column: Column
    published: Figure | None  # as printed; None where the paper has none
    run: str | None  # the configuration that measures it, <folder>/<model>; None: it is the literature's, or empty
    record: Mapping[str, Any] | None  # of the run; None: it has not been begun
    row: Row
    compared: Row | None  # that of the model that speeds are compared with

    @property
    def count(self) -> int | None:
        """Number of seeds that have the figure; None if it is not one of seeds."""
        found: int | None = lookup(self.record, f"{self.column.value.rpartition('.')[0]}.n")
        return found

    @property
    def seeds(self) -> tuple[int, int]:
        """Number of seeds that have the figure, or else were trained, and of those that are to have it."""
        return self.count or len(lookup(self.record, "seeds") or {}), len(lookup(self.record, "config.seeds") or [])

    @property
    def ours(self) -> Figure | None:
        """The figure of the record; None where nothing was measured."""
        value = lookup(self.record, self.column.value)
        if value is None:
            return None if diverged_after(self.record) is None else Figure(None, word=DIVERGED)
        std = lookup(self.record, self.column.std or "") if self.count != 1 else None  # one has none
        return Figure(value / self.column.scale, None if std is None else std / self.column.scale)

    @property
    def figures(self) -> tuple[Figure | None, Figure | None]:
        """The paper's figure and ours."""
        return self.published, self.ours

    @property
    def ratio(self) -> tuple[float | None, float | None]:
        """The paper's speed and ours over that of the baseline."""
        if self.column.value != RATIOS_OF:
            return None, None
        one, two = self.published, self.compared.figures.get(self.column.key) if self.compared else None
        paper = one.value / two.value if one and one.value is not None and two and two.value else None
        ours = 1.0 if self.row is self.compared else lookup(self.record, "speed.ratio")
        return paper, None if lookup(self.record, RATIOS_OF) is None else ours

    @property
    def state(self) -> str:
        if self.run is None:
            return "literature"
        return "measured" if self.ours else "not run" if self.record is None else "not yet"


def read_runs(table: Table, work: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The records of a table's runs, in the order of its rows, and those of other settings than there are now.

    Raises:
        UserError: a file is there and is not a record.
    """
    records, outdated = {}, []
    for run in dict.fromkeys(_run(table, row, column) for row in table.rows for column in table.columns):
        if run is not None:
            config = load_config(CONFIGS / f"{run}.yaml")
            path = work / config.dataset / config.name / "record.json"
            if path.exists():
                records[run] = read_record(path)
                if records[run]["config"] | {"precision": None} != config.merged() | {"precision": None}:
                    outdated.append(run)
    return records, outdated


def _run(table: Table, row: Row, column: Column) -> str | None:
    config = table.config(row, column)
    return None if config is None else f"{config.parent.name}/{config.stem}"


def baseline(records: Mapping[str, Any]) -> str | None:
    """The model whose speed those of a table's runs were compared with; None if none was."""
    return next((model for each in records.values() if (model := lookup(each, "speed.baseline.model"))), None)


def cells(table: Table, records: Mapping[str, Any]) -> list[list[Cell]]:
    """Row by row, the cells of a table in the order of its columns."""
    model = baseline(records)
    compared = next((row for row in table.rows if model is not None and row.config == model), None)

    def cell(row: Row, column: Column) -> Cell:
        run = _run(table, row, column)
        return Cell(column, row.figures.get(column.key), run, records.get(run or ""), row, compared)

    return [[cell(row, column) for column in table.columns] for row in table.rows]


def grid(table: Table, content: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Header and rows: under each heading the paper's figure and ours, and their ratios where there is a baseline."""
    header, notes = ["Model"], _notes(table)
    for column in table.columns:
        header += [f"{column.heading}: paper", "ours", *(["ratio: paper", "ours"] if column.value == RATIOS_OF else [])]
    lines = [header]
    for row, line in zip(table.rows, content, strict=True):
        texts = [row.name + (f" [{notes.index(row.note) + 1}]" if row.note else "")]
        for cell in line:
            digits, (done, wanted) = cell.column.digits, cell.seeds
            ours = cell.state if cell.run and not cell.ours else _figure(cell.ours, max(digits, min(digits + 1, 2)))
            if cell.ours and cell.column.value.startswith("summary.") and done < wanted:
                ours += f" ({done} of {wanted} seeds)"
            texts += [_figure(cell.published, digits), ours]
            if cell.column.value == RATIOS_OF:
                texts += [EMPTY if ratio is None else f"{ratio:.2f}" for ratio in cell.ratio]
        lines.append(texts)
    return lines


def remarks(table: Table, content: Sequence[Sequence[Cell]], compared: str | None, options: str) -> list[str]:
    """The rows' notes, the model that speeds are ``compared`` with, how much has been run, and the commands of what is
    missing, with ``options`` beside the configuration.
    """
    notes = [f"[{number}] {note}" for number, note in enumerate(_notes(table), 1)]
    if compared and any(column.value == RATIOS_OF for column in table.columns):
        notes.append(f"Ratios are to the speed of {compared}; ours to its speed in the same run, on the same machine.")
    wanted = [cell for line in content for cell in line if cell.run is not None]
    missing = [cell.run for cell in wanted if cell.ours is None]
    if not missing:
        return [*notes, f"All {len(wanted)} figures that are trained here are measured."]
    done = f"{len(wanted) - len(missing)} of the {len(wanted)} figures that are trained here are measured. The others:"
    commands = (f"python -m scripts.reproduce configs/{run}.yaml{options}" for run in dict.fromkeys(missing))
    return [*notes, done, *commands]


def as_text(table: Table, content: Sequence[Sequence[Cell]], below: Sequence[str]) -> str:
    """The table for a terminal; ``below`` it the remarks and signatures."""
    title = f"Table {table.number}: {table.title}"
    return "\n".join([title, "", *aligned(grid(table, content), left=1, rule=True), "", *below])


def as_markdown(table: Table, content: Sequence[Sequence[Cell]], below: Sequence[str], picture: str) -> str:
    """The table as a Markdown page with its picture."""
    header, *rows = grid(table, content)
    lines = [f"# Table {table.number}", "", f"{table.title}.", "", markdown_table(header, rows)]
    lines += ["", f"![Table {table.number}]({picture})", "", "```", *below, "```"]
    return "\n".join(lines) + "\n"


def as_csv(table: Table, content: Sequence[Sequence[Cell]]) -> str:
    """A line for each figure that the paper has, with everything known of it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for row, line in zip(table.rows, content, strict=True):
        for cell in line:
            if cell.published is not None:
                seeds = "" if cell.record is None else f"{cell.seeds[0]}/{cell.seeds[1]}"
                line_of = [table.number, row.name, cell.run, cell.column.key, cell.column.heading]
                for figure in cell.figures:
                    line_of += [figure.word or figure.value, figure.std] if figure else [None, None]
                writer.writerow([*line_of, seeds, *cell.ratio, cell.state])
    return out.getvalue()


def _figure(figure: Figure | None, digits: int) -> str:
    if figure is None or figure.value is None:
        return EMPTY if figure is None else str(figure.word)
    return f"{figure.value:.{digits}f}" + ("" if figure.std is None else f" ± {figure.std:.{digits}f}")


def _notes(table: Table) -> list[str]:
    return [row.note for row in table.rows if row.note]
