"""Pictures of scores with their intervals, beside the paper's, and of the speed of generation against length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from data_prep.common.errors import UserError
from scripts.compare.intervals import Interval, mean_score, pooled
from scripts.compare.plan import Run
from scripts.config import load_config
from scripts.plot.figure import COLOURS, MUTED, drawing, legend_below, line_style, shortened, thousands
from scripts.scoring.score_names import LOWER_IS_BETTER, NAMES
from scripts.tables.published import Figure, read_tables
from scripts.tables.records import lookup, read_record

ROW, LEAST = 0.2, 0.45  # heights in inches: of a run, and of axes without runs
SPEED_HEIGHT = 2.6
SUMMARY = "summary.test."  # path of the scores in a record
# the marks of the picture
MEAN: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "markersize": 4.5, "linewidth": 1.2}
SEED: dict[str, Any] = {"color": MUTED, "marker": "|", "markersize": 6, "linestyle": "none"}
PAPER: dict[str, Any] = {"color": COLOURS[1], "marker": "D", "markersize": 4, "linestyle": "none", "fillstyle": "none"}


@dataclass(frozen=True)
class Score:
    """A score of a run: of each seed, the mean with its interval, and the paper's score if it has one."""

    name: str
    seeds: list[float]
    mean: Interval
    paper: Figure | None


@dataclass(frozen=True)
class Panel:
    """The scores of one kind on one dataset, best first."""

    dataset: str
    key: str
    scores: list[Score]

    @property
    def title(self) -> str:
        """Name of the score, and the dataset."""
        return f"{NAMES[self.key]} on {self.dataset}" + (" (lower is better)" if self.key in LOWER_IS_BETTER else "")


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the records of runs. Two runs with the same name are named by their paths.

    Args:
        paths: each a record.json, a run's folder, or a dataset's folder of runs.

    Raises:
        UserError: a file is not a record, or a folder has none.
    """
    files: list[Path] = []
    for path in paths:
        of_dataset = sorted(path.glob("*/record.json"))
        files += of_dataset or [path / "record.json" if path.is_dir() else path]
    records = {file: read_record(file) for file in files}
    names = [(record["dataset"], record["model"]) for record in records.values()]
    return [
        Run(record["model"] if names.count(name) == 1 else str(file), record)
        for (file, record), name in zip(records.items(), names, strict=True)
    ]


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Return for each dataset the score that its runs are compared by, with intervals, then the paper's scores.

    Raises:
        UserError: no run has a score on the test set.
    """
    drawn: list[Panel] = []
    for dataset, key in dict.fromkeys((str(run.record["dataset"]), run.key) for run in runs):
        alike = [run for run in runs if (run.record["dataset"], run.key) == (dataset, key) and run.scores(key)]
        published = published_scores(alike)
        seeds = pooled(alike)
        compared = [
            Score(run.name, run.scores(key), mean_score(run, seeds), published.get((run.name, key))) for run in alike
        ]
        drawn.append(Panel(dataset, key, _best_first(compared, key)))
        for paper_key in dict.fromkeys(name for _, name in published if name != key):
            scores = [
                Score(run.name, values, Interval(fmean(values), None), published.get((run.name, paper_key)))
                for run in alike
                if (values := run.scores(paper_key))
            ]
            drawn.append(Panel(dataset, paper_key, _best_first(scores, paper_key)))
    if not any(panel.scores for panel in drawn):
        raise UserError("none of these runs has test scores yet; run the stage score first")
    return [panel for panel in drawn if panel.scores]


def _best_first(scores: Sequence[Score], key: str) -> list[Score]:
    return sorted(scores, key=lambda score: score.mean.value, reverse=key not in LOWER_IS_BETTER)


def published_scores(runs: Sequence[Run]) -> dict[tuple[str, str], Figure]:
    """Return the paper's test scores of these runs' configurations, by the names of run and score."""
    names = {(run.record["dataset"], run.record["model"]): run.name for run in runs}
    models = {model for _, model in names}
    published: dict[tuple[str, str], Figure] = {}
    for table in read_tables().values():
        for column in (column for column in table.columns if column.value.startswith(SUMMARY)):
            key = column.value.removeprefix(SUMMARY).partition(".")[0]
            for row in table.rows:
                path, figure = table.config(row, column), row.figures.get(column.key)
                if path is None or path.stem not in models or figure is None or figure.value is None:
                    continue
                if name := names.get((load_config(path).dataset, path.stem)):
                    published[name, key] = figure
    return published


def draw(path: Path, runs: Sequence[Run]) -> None:
    """Draw a panel for each dataset and score, and one of speed against length if a run has measured it."""
    shown, speeds = panels(runs), speeds_by_length(runs)
    heights = [LEAST + ROW * len(panel.scores) for panel in shown] + ([SPEED_HEIGHT] if speeds else [])
    texts = [score.name for panel in shown for score in panel.scores]
    with drawing(path, height=sum(heights) + 0.25 * len(heights), texts=texts) as figure:
        axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for panel, panel_axes in zip(shown, axes, strict=False):
            _draw_scores(panel_axes, panel)
        scores = [score for panel in shown for score in panel.scores]
        handles: list[Any] = [Line2D([], [], **MEAN)]
        labels = ["mean over the seeds, 95% interval"]
        for label, style, used in (
            ("each seed", SEED, any(len(score.seeds) > 1 for score in scores)),
            ("the paper's", PAPER, any(score.paper for score in scores)),
        ):
            handles += [Line2D([], [], **style)] if used else []
            labels += [label] if used else []
        if speeds:
            more = _draw_speeds(axes[-1], speeds)
            handles, labels = [*handles, *more], [*labels, *speeds]
        legend_below(figure, handles, labels)


def _draw_scores(axes: Axes, panel: Panel) -> None:
    for row, score in enumerate(panel.scores):
        if score.paper and score.paper.value is not None:
            axes.errorbar(score.paper.value, row, xerr=score.paper.std, **PAPER)
        if len(score.seeds) > 1:
            axes.plot(score.seeds, [row] * len(score.seeds), **SEED)
        axes.errorbar(score.mean.value, row, xerr=score.mean.half, **MEAN)
        interval = "" if score.mean.half is None else f" [{score.mean.low:.2f}, {score.mean.high:.2f}]"
        axes.annotate(
            f"{score.mean.value:.2f}{interval}",
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            annotation_clip=False,
        )
    axes.set_yticks(range(len(panel.scores)), [shortened(score.name, 40) for score in panel.scores])
    axes.set(ylim=(len(panel.scores) - 0.4, -0.6), title=panel.title)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10)))
    axes.margins(x=0.06)


def speeds_by_length(runs: Sequence[Run]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return by name the speeds at each length of the runs that have measured them, and of their baselines."""
    speeds: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        baseline = lookup(run.record, "speed.baseline.model")
        for name, section in ((run.name, "speed"), (baseline, "speed.baseline")):
            if name and (measured := run.speeds(section)):
                speeds.setdefault(name, measured)
    return speeds


def _draw_speeds(axes: Axes, speeds: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[Any]:
    """Draw a curve for each run; return them for the legend."""
    curves: list[Any] = []
    for number, measured in enumerate(speeds.values(), 2):
        curve = axes.errorbar(
            list(measured),
            [speed["mean"] for speed in measured.values()],
            yerr=[speed["std"] or 0.0 for speed in measured.values()],
            marker="o",
            markersize=3,
            elinewidth=0.8,
            **line_style(number),
        )
        curves.append(curve)
    axes.set(xscale="log", yscale="log", title="sentences a second, in batches of lines of like length")
    axes.set_xlabel("shortest source line of the batch, in subwords")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        thousands(axis)
    return curves
