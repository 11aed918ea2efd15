"""A table of the paper as a picture: quality against parameters and speed, the paper's points and ours."""

from pathlib import Path
from typing import Any, NamedTuple

from scripts.common.figure import open_figure
from scripts.tables.measured import Measured

_COLOURS = {"paper": "tab:blue", "ours": "tab:orange"}
_SPREADS = 5.0  # figures that differ by more than this factor are drawn on a logarithmic axis


class Point(NamedTuple):
    """A row's figure in a panel; ``x`` is the row's number where there is nothing to set it against."""

    row: int
    x: float
    y: float
    std: float | None


def panels(measured: Measured) -> list[tuple[int, int | None]]:
    """The columns to draw: each quality, and beside it each quantity of the same dataset; None: row by row."""
    found: list[tuple[int, int | None]] = []
    columns = measured.table.columns
    scores = [column.value.startswith("summary.") for column in columns]
    for y, quality in enumerate(columns):
        if scores[y]:
            others = [x for x, other in enumerate(columns) if other.dataset == quality.dataset and not scores[x]]
            found += [(y, x) for x in others] or [(y, None)]
    return found


def as_ratios(measured: Measured, x: int | None) -> bool:
    """Return True if a column is drawn as ratios: it has speeds, and that of a baseline was measured."""
    return x is not None and any(line[x].ratio[0] for line in measured.cells)


def points(measured: Measured, y: int, x: int | None, *, ours: bool) -> list[Point]:
    """The paper's points of a panel, or ours."""
    found, ratios = [], as_ratios(measured, x)
    for number, line in enumerate(measured.cells, 1):
        height, at = line[y].figures[ours], float(number) if x is None else None
        if x is not None and (figure := line[x].figures[ours]):
            at = line[x].ratio[ours] if ratios else figure.value
        if height is not None and height.value is not None and at is not None:
            found.append(Point(number, at, height.value, height.std))
    return found


def draw(measured: Measured, out: Path) -> None:
    """The panels beside one another, and the names of the rows by their numbers, as the PNG file ``out``."""
    parts, table = panels(measured), measured.table
    labels = [f"{number}  {row.name}".replace("$", r"\$") for number, row in enumerate(table.rows, 1)]
    width = 4.8 * len(parts) + 0.07 * max(map(len, labels))
    with open_figure(out, width=width, height=max(5.0, 0.2 * len(labels) + 2)) as figure:
        for axes, (y, x) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
            draw_panel(axes, measured, y, x)
        colours = ["black"] * len(labels) + list(_COLOURS.values())
        labels += [f"numbers in {colour.removeprefix('tab:')}: {whose}" for whose, colour in _COLOURS.items()]
        marks = axes.plot([], []) * len(labels)  # no mark: the numbers are in the labels
        how = {"handlelength": 0, "handletextpad": 0, "frameon": False, "fontsize": 8}
        figure.legend(marks, labels, labelcolor=colours, loc="outside right center", **how)
        figure.suptitle(f"Table {table.number}: {table.title}", weight="bold", wrap=True)
        figure.set_layout_engine("constrained")


def draw_panel(axes: Any, measured: Measured, y: int, x: int | None) -> None:
    """One panel: a row's number stands where its point is. Points that coincide share one mark."""
    places = []
    for ours, colour in enumerate(_COLOURS.values()):
        marks: dict[tuple[float, float], list[str]] = {}
        for point in points(measured, y, x, ours=bool(ours)):
            axes.errorbar(point.x, point.y, yerr=point.std, fmt="none", color=colour, elinewidth=0.8, alpha=0.5)
            marks.setdefault((point.x, point.y), []).append(str(point.row))
            places.append(point.x)
        for place, rows in marks.items():
            text = ",".join(rows)
            axes.plot(*place, marker=f"${text}$", markersize=4 + 3 * len(text), markeredgewidth=0.2, color=colour)
    quality, against = measured.table.columns[y], None if x is None else measured.table.columns[x]
    lower = " (lower is better)" if quality.better == "lower" else ""
    millions = ", millions" if against and against.value == "parameters" else ""
    label = f"{against.heading}{millions}" if against else "row"
    axes.set_xlabel("speed, times that of the baseline" if as_ratios(measured, x) else label, fontsize=9)
    axes.set_ylabel(quality.heading + lower, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.margins(0.12)
    if x is None:
        axes.set_xticks(sorted({round(place) for place in places}))
    elif max(places) > _SPREADS * min(places):
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
