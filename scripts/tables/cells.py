"""Tables as columns of cells, and their output as text, Markdown, LaTeX and CSV."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.common.outputs import atomic_file

EMPTY = "-"


@dataclass(frozen=True)
class Number:
    """A number with its mean, deviation, interval, unit and note, as far as known.

    ``form`` is Python's format specification for all of these numbers.
    """

    value: float
    form: str = ".2f"
    mean: float | None = None  # over the seeds, if the value is the best seed's
    std: float | None = None  # standard deviation over the seeds
    low: float | None = None  # ends of the 95% interval
    high: float | None = None
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        texts = {name: format(value, self.form) for name, value in self.parts().items()}
        text = texts["value"] + self.unit
        if "mean" in texts:
            spread = f" ± {texts['std']}" if "std" in texts else ""
            text += f" ({texts['mean']}{spread})"
        elif "std" in texts:
            text += f" ± {texts['std']}"
        if "low" in texts:
            text += f" [{texts['low']}, {texts['high']}]"
        return text + (f" ({self.note})" if self.note else "")

    def parts(self) -> dict[str, float]:
        """Return the numbers that are known, by their names; ``value`` is the first."""
        named = {name: getattr(self, name) for name in ("value", "mean", "std", "low", "high")}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Absent:
    """The reason for a missing number, in a word or two."""

    why: str

    def __str__(self) -> str:
        return self.why


Cell = Number | Absent | str | None
"""None is an unknown value; it is printed as a dash, and is empty in CSV."""


@dataclass(frozen=True)
class Column:
    """A column: its heading, its name in CSV, and a cell for each row.

    Neighbouring columns with the same ``group`` have it as a common heading.
    """

    heading: str
    name: str
    cells: Sequence[Cell]
    group: str = ""

    def is_empty(self) -> bool:
        """Return True if all cells are unknown."""
        return all(cell is None for cell in self.cells)


Table = Sequence[Column]
CSV_PARTS = ("_mean", "_std", "_low", "_high", "_note")


def over_seeds(values: Mapping[str, Any] | None, form: str = ".2f") -> Number | None:
    """Return mean and deviation of a record's value over its seeds or runs; one alone has no deviation."""
    if not values or values.get("mean") is None:
        return None
    return Number(values["mean"], form, std=values.get("std") if values.get("n") != 1 else None)


def as_grid(table: Table) -> list[list[str]]:
    """Return header and rows as text; the first heading of a group begins with the group's name."""
    groups = ["", *(column.group for column in table)]
    header = [
        f"{column.group}: {column.heading}" if column.group not in ("", left_group) else column.heading
        for column, left_group in zip(table, groups, strict=False)
    ]
    rows = zip(*(column.cells for column in table), strict=True)
    return [header, *([EMPTY if cell is None else str(cell) for cell in row] for row in rows)]


def write_csv(path: Path, tables: Sequence[Table]) -> None:
    """Write the rows of all tables into one file, with a column for each part of a number.

    A number in a column ``bleu`` becomes ``bleu``, ``bleu_mean``, ``bleu_std``, ``bleu_low``, ``bleu_high`` and
    ``bleu_note``, as far as these are known.
    """
    rows = []
    for table in tables:
        for position in range(len(table[0].cells)):
            row: dict[str, str] = {}
            for column in table:
                row |= _csv_fields(column.name, column.cells[position])
            rows.append(row)
    # all parts of a number are neighbours, whichever row has them
    names = [column.name for table in tables for column in table]
    order = [f"{name}{part}" for name in dict.fromkeys(names) for part in ("", *CSV_PARTS)]
    used = {name for row in rows for name in row}
    with atomic_file(path) as file:
        writer = csv.DictWriter(file, [name for name in order if name in used], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _csv_fields(name: str, cell: Cell) -> dict[str, str]:
    if isinstance(cell, Absent):
        return {name: "", f"{name}_note": cell.why}
    if not isinstance(cell, Number):
        return {name: cell or ""}
    fields = {f"{name}_{part}": f"{number:.10g}" for part, number in cell.parts().items()}
    fields = {name: fields.pop(f"{name}_value"), **fields}
    return fields | ({f"{name}_note": cell.note} if cell.note else {})


def write_latex(path: Path, tables: Sequence[Table], notes: Sequence[str], command: str) -> None:
    """Write a tabular for each table, to be included by \\input; it needs the package booktabs.

    Args:
        path: the file.
        tables: from top to bottom.
        notes: comments at the end, such as the signatures of the scores.
        command: the command that writes the file, for its first line.
    """
    head = [f"% Written by {command}. In the preamble: \\usepackage{{booktabs}}"]
    tail = [f"% {line}".rstrip() for note in notes for line in note.split("\n")]
    with atomic_file(path) as file:
        file.write("\n".join([*head, "", *("\n".join(_tabular(table)) + "\n" for table in tables), *tail]) + "\n")


def _tabular(table: Table) -> list[str]:
    sides = "".join("l" if all(isinstance(cell, str) for cell in column.cells) else "r" for column in table)
    lines = [f"\\begin{{tabular}}{{{sides}}}", "\\toprule", *_groups(table)]
    lines += [" & ".join(_escaped(column.heading) for column in table) + r" \\", r"\midrule"]
    for row in zip(*(column.cells for column in table), strict=True):
        lines.append(" & ".join(map(_latex_cell, row)) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _groups(table: Table) -> list[str]:
    """Return the line of group names above the headings, and the rules below them; empty without groups."""
    cells, rules, start = [], [], 1
    while start <= len(table):
        group = table[start - 1].group
        end = start
        while group and end < len(table) and table[end].group == group:
            end += 1
        cells.append(f"\\multicolumn{{{end - start + 1}}}{{c}}{{{_escaped(group)}}}" if group else "")
        rules += [f"\\cmidrule(lr){{{start}-{end}}}"] if group else []
        start = end + 1
    return [" & ".join(cells) + r" \\", " ".join(rules)] if rules else []


def _latex_cell(cell: Cell) -> str:
    if cell is None:
        return "--"
    if not isinstance(cell, Number):
        return _escaped(str(cell))
    # math mode prints a hyphen as a minus sign
    text = re.sub(_NUMBER, lambda number: f"${number[0].replace(',', '{,}')}$", str(replace(cell, note="")))
    return text.replace("$ ± $", r" \pm ") + (f" ({_escaped(cell.note)})" if cell.note else "")


_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?")
_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
