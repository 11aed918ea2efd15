"""A table of the paper as a picture: quality against parameters and speed, the paper's points and ours."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.figure import open_figure
from scripts.tables.measured import RATIOS_OF, Cell
from scripts.tables.published import Column, Figure, Table

_SERIES = (("paper", "tab:blue"), ("ours", "tab:orange"))
# inches
_PANEL, _TALL, _LEFT, _TOP, _BOTTOM, _LINE, _LETTER, _BOLD = 4.0, 3.6, 0.8, 0.65, 0.65, 0.19, 0.068, 0.095
_SPREADS = 5.0  # figures that differ by more than this factor are drawn on a logarithmic axis


@dataclass(frozen=True)
class Point:
    """A row's figure in a panel; ``x`` is the row's number where there is nothing to set it against."""

    row: int
    x: float
    y: float
    std: float | None


@dataclass(frozen=True)
class Panel:
    """Quality against one other quantity, or row by row without one."""

    quality: Column
    against: Column | None
    label: str
    paper: Sequence[Point]
    ours: Sequence[Point]


def panels(table: Table, cells: Sequence[Sequence[Cell]]) -> list[Panel]:
    """Return what to draw of a table: each quality against each quantity of the same dataset, or else row by row."""
    found = []
    for y, quality in enumerate(table.columns):
        if not quality.value.startswith("summary."):
            continue
        others = [
            x
            for x, other in enumerate(table.columns)
            if other.dataset == quality.dataset and not other.value.startswith("summary.")
        ]
        found += [_panel(table, cells, y, x) for x in others] or [_panel(table, cells, y, None)]
    return found


def _panel(table: Table, cells: Sequence[Sequence[Cell]], y: int, x: int | None) -> Panel:
    quality = table.columns[y]
    against = None if x is None else table.columns[x]
    relative = against is not None and against.value == RATIOS_OF and any(line[x].ratio[0] for line in cells)  # type: ignore[index]
    if against is None:
        label = "row"
    elif relative:
        label = "speed, times that of the baseline"
    else:
        label = f"{against.heading}, millions" if against.value == "parameters" else against.heading

    def points(ours: bool) -> list[Point]:
        result = []
        for number, line in enumerate(cells, 1):
            height = _figure(line[y], ours)
            if x is None:
                at: float | None = number
            elif relative:
                at = line[x].ratio[ours]
            else:
                figure = _figure(line[x], ours)
                at = None if figure is None else figure.value
            if height is not None and height.value is not None and at is not None:
                result.append(Point(number, at, height.value, height.std))
        return result

    return Panel(quality, against, label, points(False), points(True))


def _figure(cell: Cell, ours: bool) -> Figure | None:
    return cell.ours if ours else cell.published


def draw(table: Table, cells: Sequence[Sequence[Cell]], out: Path) -> None:
    """The panels beside one another, and the names of the rows by their numbers, as the PNG file ``out``."""
    parts = panels(table, cells)
    names = [f"{number}  {row.name}" for number, row in enumerate(table.rows, 1)]
    key = _LETTER * max(map(len, names)) + 0.3
    tall = max(_TALL, _LINE * (len(names) + 2))
    width = len(parts) * (_LEFT + _PANEL) + 0.3 + key
    title = textwrap.wrap(f"Table {table.number}: {table.title}", int(width / _BOLD))
    top = _TOP + _LINE * (len(title) - 1)
    height = top + tall + _BOTTOM
    with open_figure(out, width=width, height=height) as figure:
        figure.text(0.2 / width, 1 - 0.2 / height, "\n".join(title), weight="bold", va="top")
        for number, panel in enumerate(parts):
            left = _LEFT + number * (_LEFT + _PANEL)
            axes = figure.add_axes((left / width, _BOTTOM / height, _PANEL / width, tall / height))
            draw_panel(axes, panel)
        left = (width - key) / width
        for number, name in enumerate(names):
            figure.text(left, 1 - (top + _LINE * (number + 0.7)) / height, name, fontsize=8, parse_math=False)
        for number, (whose, colour) in enumerate(_SERIES):
            y = 1 - (top + _LINE * (len(names) + 0.9 + number)) / height
            figure.text(left, y, f"numbers in {colour.removeprefix('tab:')}: {whose}", fontsize=8, color=colour)


def draw_panel(axes: Any, panel: Panel) -> None:
    """One panel: a row's number stands where its point is. Points that coincide share one mark."""
    for points, (_, colour) in zip((panel.paper, panel.ours), _SERIES, strict=True):
        xs, ys, errors = [p.x for p in points], [p.y for p in points], [p.std or 0.0 for p in points]
        axes.errorbar(xs, ys, yerr=errors, fmt="none", color=colour, elinewidth=0.8, alpha=0.5)
        marks: dict[tuple[float, float], list[str]] = {}
        for point in points:
            marks.setdefault((point.x, point.y), []).append(str(point.row))
        for (x, y), rows in marks.items():
            text = ",".join(rows)
            axes.plot(x, y, marker=f"${text}$", markersize=4 + 3 * len(text), markeredgewidth=0.2, color=colour)
    lower = " (lower is better)" if panel.quality.better == "lower" else ""
    axes.set_xlabel(panel.label, fontsize=9)
    axes.set_ylabel(panel.quality.heading + lower, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.margins(0.12)
    xs = [point.x for point in (*panel.paper, *panel.ours)]
    if panel.against is None:
        axes.set_xticks(sorted({round(x) for x in xs}))
    elif max(xs) > _SPREADS * min(xs):
        _logarithmic(axes, xs)


def _logarithmic(axes: Any, xs: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(min(xs) / 1.4, max(xs) * 1.4)
