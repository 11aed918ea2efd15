"""The paper's tables as objects, from configs/tables.yaml, whose header says what it holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common import CHECKOUT
from scripts.common.schema import build, require, require_known
from scripts.common.strict_yaml import read_yaml

CONFIGS = CHECKOUT / "configs"
BETTER = ("higher", "lower", "neither")


@dataclass(frozen=True)
class Column:
    """A column: where a run's record has its figure (a dotted path), and how the figure is printed."""

    key: str
    heading: str
    dataset: str
    value: str
    std: str | None = None
    scale: float = 1.0  # the record's figure is divided by it
    digits: int = 1  # after the point
    better: str = "higher"


@dataclass(frozen=True)
class Figure:
    """The content of a cell: a number, with a standard deviation or not, or a word in its place."""

    value: float | None
    std: float | None = None
    word: str | None = None


@dataclass(frozen=True)
class Row:
    """A row: its published figures by column, and the model here that is trained to meet them."""

    name: str
    figures: dict[str, Figure]
    config: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Table:
    """One of the paper's tables."""

    number: int
    title: str
    columns: list[Column] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def config(self, row: Row, column: Column) -> Path | None:
        """The configuration whose run gives the figure of a cell; None if it is of the literature, or empty."""
        if row.config is None or column.key not in row.figures:
            return None
        return CONFIGS / column.dataset / f"{row.config}.yaml"

    def configs(self) -> dict[Path, Row]:
        """Every configuration of the table, once, with the row it belongs to; by dataset, then row."""
        found: dict[Path, Row] = {}
        for column in self.columns:
            for row in self.rows:
                path = self.config(row, column)
                if path is not None:
                    found.setdefault(path, row)
        return found


def read_tables(path: Path = CONFIGS / "tables.yaml") -> dict[int, Table]:
    """The tables by their number.

    Raises:
        UserError: the file cannot be read, or holds something unknown; the message names the place.
    """
    tables = read_yaml(path)
    return {number: _table(f"{path}: table {number}", number, content) for number, content in tables.items()}


def _table(place: str, number: int, content: Mapping[str, Any]) -> Table:
    require_known(place, content, ("title", "columns", "rows"))
    columns = [_column(f"{place}, column {key}", key, given) for key, given in content["columns"].items()]
    keys = [column.key for column in columns]
    return Table(number, content["title"], columns, [_row(place, given, keys) for given in content["rows"]])


def _column(place: str, key: str, given: Mapping[str, Any]) -> Column:
    column: Column = build(Column, given, file=place, given={"key": key})
    require(place, column.better in BETTER, "better", column.better, f"one of {', '.join(BETTER)}")
    return column


def _row(place: str, given: Mapping[str, Any], columns: list[str]) -> Row:
    require_known(f"{place}, row {given.get('name')}", given, ("name", "config", "note", *columns))
    figures = {key: _figure(given[key]) for key in columns if key in given}
    return Row(given["name"], figures, given.get("config"), given.get("note"))


def _figure(given: Any) -> Figure:
    if isinstance(given, str):
        return Figure(None, word=given)
    value, std = given if isinstance(given, list) else (given, None)
    return Figure(float(value), None if std is None else float(std))
