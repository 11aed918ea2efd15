"""A table of the paper as a picture: quality against parameters and speed, the paper's points and ours."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.figure import open_figure
from scripts.tables.measured import RATIOS_OF, Cell
from scripts.tables.published import Column, Figure, Table

# name, colour, marker, filled
_SERIES = (("paper", "tab:blue", "o"), ("ours", "tab:orange", "D"))
# inches
_PANEL, _TALL, _LEFT, _TOP, _BOTTOM, _LINE, _LETTER, _BOLD = 4.0, 3.6, 0.8, 0.65, 0.65, 0.19, 0.068, 0.095
_SPREADS = 5.0  # figures that differ by more than this factor are drawn on a logarithmic axis
# where a label may stand: the directions, and how far from its point, in points
_DIRECTIONS = [
    (math.cos(math.pi * n / 8), math.sin(math.pi * n / 8))
    for n in (0, 4, 8, 12, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13, 15)
]
_DISTANCES = (9.0, 17.0, 26.0, 36.0, 48.0, 60.0)


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
        for number, (whose, colour, marker) in enumerate(_SERIES):
            y = 1 - (top + _LINE * (len(names) + 0.9 + number)) / height
            figure.text(left, y, f"{'●' if marker == 'o' else '◆'} {whose}", fontsize=8, color=colour)


def draw_panel(axes: Any, panel: Panel) -> None:
    """One panel; the axes have the place in the picture that they will keep."""
    for points, (_, colour, marker) in zip((panel.paper, panel.ours), _SERIES, strict=True):
        errors = [point.std or 0.0 for point in points]
        xs, ys = [point.x for point in points], [point.y for point in points]
        axes.errorbar(xs, ys, yerr=errors, fmt=marker, color=colour, markersize=5, elinewidth=0.8, alpha=0.85)
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
    if panel.against is not None:
        _number(axes, panel)


def _logarithmic(axes: Any, xs: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(min(xs) / 1.4, max(xs) * 1.4)


def _number(axes: Any, panel: Panel) -> None:
    """The rows' numbers, where they hide nothing; points that coincide share one, and distant ones have a line."""
    from matplotlib.transforms import Bbox

    def box(x: float, y: float, wide: float, tall: float) -> Any:
        return Bbox.from_bounds(x - wide / 2, y - tall / 2, wide, tall)

    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # settles where a point is
    series = [(points, colour) for points, (_, colour, _) in zip((panel.paper, panel.ours), _SERIES, strict=True)]
    pixel = axes.figure.dpi / 72
    taken = []
    for point in (*panel.paper, *panel.ours):
        x, y = axes.transData.transform((point.x, point.y))
        bar = axes.transData.transform((point.x, point.y + (point.std or 0.0)))[1] - y
        taken += [box(x, y, 8 * pixel, 8 * pixel), box(x, y, 2 * pixel, 2 * bar)]
    for points, colour in series:
        labels: dict[tuple[float, float], list[str]] = {}
        for point in points:
            labels.setdefault((point.x, point.y), []).append(str(point.row))
        for place, rows in labels.items():
            text = ",".join(rows)
            wide, tall = (4.6 * len(text) + 1) * pixel, 8.5 * pixel
            shifts = [
                (dx * (far * pixel + wide / 2 - 4), dy * far * pixel) for far in _DISTANCES for dx, dy in _DIRECTIONS
            ]
            x, y = axes.transData.transform(place)
            boxes = [box(x + dx, y + dy, wide, tall) for dx, dy in shifts]
            best = min(range(len(boxes)), key=lambda i: boxes[i].count_overlaps(taken))
            taken.append(boxes[best])
            line = {"arrowstyle": "-", "lw": 0.5, "color": colour, "shrinkA": 0, "shrinkB": 2}
            axes.annotate(
                text,
                place,
                shifts[best],
                textcoords="offset pixels",
                fontsize=7,
                color=colour,
                ha="center",
                va="center",
                arrowprops=line if best >= len(_DIRECTIONS) else None,
            )
