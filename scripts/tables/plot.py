"""A table of the paper as a picture: quality against parameters and speed, the paper's points and ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.figure import open_figure
from scripts.tables.measured import RATIOS_OF, Measured
from scripts.tables.published import Column

_COLOURS = {"paper": "tab:blue", "ours": "tab:orange"}
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
    """Quality against one other quantity, or row by row without one; its points by whose they are."""

    quality: Column
    against: Column | None
    label: str
    points: dict[str, list[Point]]


def panels(measured: Measured) -> list[Panel]:
    """Return what to draw of a table: each quality against each quantity of the same dataset, or else row by row."""
    found, columns = [], measured.table.columns
    scores = [column.value.startswith("summary.") for column in columns]
    for y, quality in enumerate(columns):
        if scores[y]:
            others = [x for x, other in enumerate(columns) if other.dataset == quality.dataset and not scores[x]]
            found += [_panel(measured, y, x) for x in others] or [_panel(measured, y, None)]
    return found


def _panel(measured: Measured, y: int, x: int | None) -> Panel:
    points: dict[str, list[Point]] = {"paper": [], "ours": []}
    relative, against, label = False, None, "row"
    if x is not None:
        against = measured.table.columns[x]
        relative = against.value == RATIOS_OF and any(line[x].ratio[0] for line in measured.cells)
        label = f"{against.heading}{', millions' if against.value == 'parameters' else ''}"
    for number, line in enumerate(measured.cells, 1):
        for ours, some in enumerate(points.values()):
            height, at = line[y].figures[ours], float(number) if x is None else None
            if x is not None and (figure := line[x].figures[ours]):
                at = line[x].ratio[ours] if relative else figure.value
            if height is not None and height.value is not None and at is not None:
                some.append(Point(number, at, height.value, height.std))
    return Panel(measured.table.columns[y], against, "speed, times that of the baseline" if relative else label, points)


def draw(measured: Measured, out: Path) -> None:
    """The panels beside one another, and the names of the rows by their numbers, as the PNG file ``out``."""
    parts, table = panels(measured), measured.table
    labels = [f"{number}  {row.name}".replace("$", r"\$") for number, row in enumerate(table.rows, 1)]
    width = 4.8 * len(parts) + 0.07 * max(map(len, labels))
    with open_figure(out, width=width, height=max(5.0, 0.2 * len(labels) + 2)) as figure:
        for axes, panel in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
            draw_panel(axes, panel)
        colours = ["black"] * len(labels) + list(_COLOURS.values())
        labels += [f"numbers in {colour.removeprefix('tab:')}: {whose}" for whose, colour in _COLOURS.items()]
        marks = axes.plot([], []) * len(labels)  # no mark: the numbers are in the labels
        how = {"handlelength": 0, "handletextpad": 0, "frameon": False, "fontsize": 8}
        figure.legend(marks, labels, labelcolor=colours, loc="outside right center", **how)
        figure.suptitle(f"Table {table.number}: {table.title}", weight="bold", wrap=True)
        figure.set_layout_engine("constrained")


def draw_panel(axes: Any, panel: Panel) -> None:
    """One panel: a row's number stands where its point is. Points that coincide share one mark."""
    for whose, points in panel.points.items():
        colour = _COLOURS[whose]
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
    xs = [point.x for points in panel.points.values() for point in points]
    if panel.against is None:
        axes.set_xticks(sorted({round(x) for x in xs}))
    elif max(xs) > _SPREADS * min(xs):
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
