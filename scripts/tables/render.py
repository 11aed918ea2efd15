"""A table of the paper as text, as Markdown and as CSV: the paper's figure, ours, and what is missing."""

import csv
import io
from collections.abc import Sequence

from scripts.common.terminal import aligned, markdown_table
from scripts.tables.measured import RATIOS_OF, Cell
from scripts.tables.published import Figure, Table

EMPTY = "-"
MISSING, INCOMPLETE = "not run", "not yet"
CSV_HEADER = (
    *("table", "row", "run", "column", "heading", "paper", "paper_std", "ours", "ours_std"),
    *("seeds", "paper_ratio", "our_ratio", "state"),
)


def command(run: str, options: str) -> str:
    """Return what measures a run's figures."""
    return f"python -m scripts.reproduce configs/{run}.yaml{options}"


def grid(table: Table, cells: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Header and rows: under each heading the paper's figure and ours, and their ratios where there is a baseline."""
    header = ["Model"]
    for column in table.columns:
        header += [f"{column.heading}: paper", "ours"]
        if column.value == RATIOS_OF:
            header += ["ratio: paper", "ours"]
    lines = [header]
    for row, line in zip(table.rows, cells, strict=True):
        texts = [row.name + (f" [{_notes(table).index(row.note) + 1}]" if row.note else "")]
        for cell in line:
            digits = cell.column.digits
            texts += [_figure(cell.published, digits), _ours(cell, max(digits, min(digits + 1, 2)))]
            if cell.column.value == RATIOS_OF:
                texts += [EMPTY if ratio is None else f"{ratio:.2f}" for ratio in cell.ratio]
        lines.append(texts)
    return lines


def remarks(table: Table, cells: Sequence[Sequence[Cell]], compared: str | None, options: str) -> list[str]:
    """The rows' notes, what speeds are compared with, how much has been run, and the commands of what is missing.

    Args:
        compared: the model that speeds are compared with.
        options: of the commands, beside the configuration.
    """
    notes = [f"[{number}] {note}" for number, note in enumerate(_notes(table), 1)]
    if compared and any(column.value == RATIOS_OF for column in table.columns):
        notes.append(f"Ratios are to the speed of {compared}; ours to its speed in the same run, on the same machine.")
    wanted = [cell for line in cells for cell in line if cell.run is not None]
    missing = [cell for cell in wanted if cell.missing]
    if not missing:
        return [*notes, f"All {len(wanted)} figures that are trained here are measured."]
    runs = dict.fromkeys(cell.run for cell in missing if cell.run)  # in their order, each once
    summary = (
        f"{len(wanted) - len(missing)} of the {len(wanted)} figures that are trained here are measured. The others:"
    )
    return [*notes, summary, *(command(run, options) for run in runs)]


def as_text(table: Table, cells: Sequence[Sequence[Cell]], below: Sequence[str]) -> str:
    """The table for a terminal; ``below`` it the remarks and signatures."""
    title = f"Table {table.number}: {table.title}"
    return "\n".join([title, "", *aligned(grid(table, cells), left=1, rule=True), "", *below])


def as_markdown(table: Table, cells: Sequence[Sequence[Cell]], below: Sequence[str], picture: str) -> str:
    """The table as a Markdown page with its picture."""
    header, *rows = grid(table, cells)
    lines = [f"# Table {table.number}", "", f"{table.title}.", "", markdown_table(header, rows)]
    lines += ["", f"![Table {table.number}]({picture})", "", "```", *below, "```"]
    return "\n".join(lines) + "\n"


def as_csv(table: Table, cells: Sequence[Sequence[Cell]]) -> str:
    """A line for each figure that the paper has, with everything known of it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for row, line in zip(table.rows, cells, strict=True):
        for cell in line:
            if cell.published is not None:
                writer.writerow(_record(table.number, row.name, cell))
    return out.getvalue()


def _record(number: int, name: str, cell: Cell) -> list[object]:
    seeds = f"{cell.seeds[0]}/{cell.seeds[1]}" if cell.has_record else ""
    head = [number, name, cell.run, cell.column.key, cell.column.heading]
    return [*head, *_pair(cell.published), *_pair(cell.ours), seeds, *cell.ratio, _state(cell)]


def _pair(figure: Figure | None) -> tuple[object, object]:
    return (None, None) if figure is None else (figure.word or figure.value, figure.std)


def _state(cell: Cell) -> str:
    if cell.run is None:
        return "literature"
    if not cell.missing:
        return "measured"
    return INCOMPLETE if cell.has_record else MISSING


def _ours(cell: Cell, digits: int) -> str:
    if cell.missing:
        return _state(cell)
    text = _figure(cell.ours, digits)
    done, wanted = cell.seeds
    return f"{text} ({done} of {wanted} seeds)" if cell.column.value.startswith("summary.") and done < wanted else text


def _figure(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return EMPTY
    if figure.value is None:
        return str(figure.word)
    spread = "" if figure.std is None else f" ± {figure.std:.{digits}f}"
    return f"{figure.value:.{digits}f}{spread}"


def _notes(table: Table) -> list[str]:
    return [row.note for row in table.rows if row.note]
