"""The paper's tables as objects, read from configs/tables.yaml, whose header explains its keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common import CHECKOUT
from data_prep.common.schema import build, require_known
from data_prep.common.strict_yaml import read_yaml

CONFIGS = CHECKOUT / "configs"


@dataclass(frozen=True)
class Column:
    """A column: the dotted path of its value in a run's record, and its printed form."""

    key: str
    heading: str
    dataset: str
    value: str
    std: str | None = None
    scale: float = 1.0  # the record's value is divided by it
    digits: int = 1  # after the point


@dataclass(frozen=True)
class Figure:
    """A printed cell: a number, perhaps with a standard deviation, or a word."""

    value: float | None
    std: float | None = None
    word: str | None = None


@dataclass(frozen=True)
class Row:
    """A row: its published values by column, and our configuration of the model."""

    name: str
    figures: dict[str, Figure]
    config: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Table:
    """One of the paper's tables."""

    number: int
    title: str
    columns: list[Column]
    rows: list[Row]
    note: str | None = None

    def config(self, row: Row, column: Column) -> Path | None:
        """Return the configuration whose run gives the value of a cell; None for values of other papers."""
        if row.config is None or column.key not in row.figures:
            return None
        return CONFIGS / column.dataset / f"{row.config}.yaml"

    def configs(self) -> dict[Path, Row]:
        """Return each configuration of the table with its row, ordered by dataset, then row."""
        rows_of_configs: dict[Path, Row] = {}
        for column in self.columns:
            for row in self.rows:
                path = self.config(row, column)
                if path is not None:
                    rows_of_configs.setdefault(path, row)
        return rows_of_configs


def read_tables(path: Path = CONFIGS / "tables.yaml") -> dict[int, Table]:
    """Read the tables, by their number.

    Raises:
        UserError: the file cannot be read, or has an unknown key; the message names its position.
    """
    tables = {}
    for number, content in read_yaml(path).items():
        position = f"{path}: table {number}"
        require_known(position, content, ("title", "note", "columns", "rows"))
        columns, rows = list[Column](), []
        for key, settings in content["columns"].items():
            columns.append(build(Column, settings, file=f"{position}, column {key}", preset={"key": key}))
        for row in content["rows"]:
            require_known(f"{position}, row {row.get('name')}", row, ("name", "config", "note", *content["columns"]))
            figures = {key: _figure(row[key]) for key in content["columns"] if key in row}
            rows.append(Row(row["name"], figures, row.get("config"), row.get("note")))
        tables[number] = Table(number, content["title"], columns, rows, content.get("note"))
    return tables


def _figure(content: Any) -> Figure:
    if isinstance(content, str):
        return Figure(None, word=content)
    value, std = content if isinstance(content, list) else (content, None)
    return Figure(float(value), None if std is None else float(std))
