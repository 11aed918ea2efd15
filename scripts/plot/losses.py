"""The losses of trainings: curves from the logs of fairseq-train, and the same numbers as CSV."""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file
from scripts.fairseq_io.trainlog import Progress, TrainLog
from scripts.plot.figure import INK, drawing, legend_below, line_style, thousands

LOG = "train.log"
AXES = {"updates": "updates", "tokens": "tokens (millions)", "minutes": "minutes"}
KINDS = (LOG, f"checkpoints/{LOG}", f"seed*/checkpoints/{LOG}", f"*/seed*/checkpoints/{LOG}")
FEW = 7  # most configurations that are drawn with their training losses
STEPS = (1, 2, 2.5, 5, 10)  # between the marks of an axis
BEGINNING = 0.05  # first part of each training, whose high losses may be outside the picture
CSV_COLUMNS = ("run", "seed", "split", "update", "tokens", "minutes", "loss", "perplexity", "learning_rate")


class Point(NamedTuple):
    """The state of a training after an update: tokens and time until then, and mean losses since the last point."""

    update: int
    tokens: float  # of targets, since the first update
    minutes: float  # of training, including updates that an interruption lost
    loss: float  # per token, base 2
    perplexity: float
    rate: float | None = None  # the learning rate of the next update; None in validation and at the last update


@dataclass
class Curves:
    """The curves of one training."""

    name: str
    seed: str = ""
    train: list[Point] = field(default_factory=list)
    valid: list[Point] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """The last update in the log."""
        return max(point.update for point in (*self.train, *self.valid))

    @property
    def last_loss(self) -> float:
        """The last validation loss; the last of training if there is none."""
        return (self.valid or self.train)[-1].loss


def read_curves(lines: Iterable[str], name: str, seed: str = "") -> Curves:
    """Read a log of fairseq-train, also of a running training.

    Updates that were repeated after an interruption replace the lost ones.
    """
    log, curves, tokens = TrainLog(), Curves(name, seed), {0: 0.0}
    for line in lines:
        progress = log.read(line)
        if progress is None or progress.kind not in ("train_inner", "valid"):
            continue
        update = progress.update
        if progress.kind == "train_inner":
            tokens = {earlier: count for earlier, count in tokens.items() if earlier < update}
            last = max(tokens)
            tokens[update] = tokens[last] + progress.values.get("wpb", math.nan) * (update - last)
            _drop_from(update, curves)
            curves.train.append(_point(progress, tokens[update], log.seconds))
        else:
            curves.valid = [point for point in curves.valid if point.update < update]
            curves.valid.append(_point(progress, tokens[max(tokens)], log.seconds))
    if curves.train:
        # fairseq logs the rate of the next update; the last one may be that of a cycle that never began
        curves.train[-1] = curves.train[-1]._replace(rate=None)
    return curves


def _drop_from(update: int, curves: Curves) -> None:
    curves.train = [point for point in curves.train if point.update < update]
    curves.valid = [point for point in curves.valid if point.update < update]


def _point(progress: Progress, tokens: float, seconds: float | None) -> Point:
    values = progress.values
    minutes = math.nan if seconds is None else seconds / 60
    perplexity = values.get("ppl", math.nan)
    return Point(progress.update, tokens, minutes, values["loss"], perplexity, values.get("lr"))


def find_logs(path: Path) -> list[Path]:
    """Return the logs of trainings at ``path``: a log, or all logs in a folder of one of ``KINDS``.

    Raises:
        UserError: there is none.
    """
    logs = [path] if path.is_file() else [log for kind in KINDS for log in sorted(path.glob(kind))]
    if not logs:
        raise UserError(
            f"{path} has no {LOG}; give a run's folder in work/, the folder of a dataset there, one of checkpoints "
            f"with a {LOG}, or the log of fairseq-train itself (--log-format json --log-file FILE)"
        )
    return logs


def name_and_seed(log: Path) -> tuple[str, str]:
    """Return configuration and seed from the folders of a ``train.log``; the file's name for any other log."""
    if log.name != LOG:
        return log.stem, ""
    *_, configuration, folder = [part for part in log.resolve().parent.parts if part != "checkpoints"]
    seed = re.fullmatch(r"seed(\d+)", folder)
    return (configuration, seed[1]) if seed else (folder, "")


def read_runs(paths: Sequence[Path]) -> list[Curves]:
    """Read the curves of all trainings.

    Raises:
        UserError: a path has no log, or a log has no losses.
    """
    logs = {log: name_and_seed(log) for path in paths for log in find_logs(path)}
    several = Counter(logs.values())  # two runs with the same name, for example of two datasets
    runs = []
    for log, (name, seed) in logs.items():
        with open(log, encoding="utf-8", errors="replace") as lines:
            curves = read_curves(lines, name, seed) if several[name, seed] == 1 else read_curves(lines, str(log))
        if not curves.train and not curves.valid:
            raise UserError(f"{log} has no losses yet; expected the log of fairseq-train with --log-format json")
        runs.append(curves)
    return runs


def write_csv(path: Path, runs: Sequence[Curves]) -> None:
    """Write every point of every curve as a row."""
    with atomic_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for run in runs:
            for split, points in (("train", run.train), ("valid", run.valid)):
                for point in points:
                    numbers = ["" if value is None or math.isnan(value) else f"{value:.10g}" for value in point]
                    writer.writerow([run.name, run.seed, split, *numbers])


def draw(path: Path, runs: Sequence[Curves], by: str) -> None:
    """Draw losses, perplexities and learning rates; all seeds of a configuration have the same colour.

    With more than ``FEW`` configurations, training losses are drawn only for those without validation losses.

    Args:
        path: the picture.
        runs: the curves.
        by: the horizontal axis: updates, tokens or minutes.
    """
    names = list(dict.fromkeys(run.name for run in runs))
    of_name = {name: [run for run in runs if run.name == name] for name in names}
    styles = {name: line_style(number) for number, name in enumerate(names)}
    names.sort(
        key=lambda name: -mean(run.last_loss for run in of_name[name])
    )  # in the order of the curves from top to bottom
    labels = [name if len(of_name[name]) == 1 else f"{name} ({len(of_name[name])} seeds)" for name in names]
    few = len(names) <= FEW
    training: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.55}
    validation: dict[str, Any] = {"linewidth": 1.4 if few else 1.1}
    if few and all(len(run.valid) <= 25 for run in runs):
        validation |= {"marker": "o", "markersize": 2.4}
    kinds = {"training": training, "validation": validation}
    handles = [Line2D([], [], color=INK, **style) for style in kinds.values()] if few else []
    handles += [Line2D([], [], **styles[name]) for name in names]
    rates = [point.rate for run in runs for point in run.train if point.rate]
    exponent = math.floor(math.log10(max(rates))) if rates else 0
    drawn = [[*(run.train if few or not run.valid else ()), *run.valid] for run in runs]
    with drawing(path, height=3.4, texts=labels) as figure:
        panels = figure.subplot_mosaic([["loss", "perplexity"], ["loss", "rate"]], width_ratios=(1.7, 1))
        panels["rate"].sharex(panels["perplexity"])
        for run in runs:
            for quantity in ("loss", "perplexity"):
                if few or not run.valid:
                    _curve(panels[quantity], run.train, by, quantity, **styles[run.name] | training)
                _curve(panels[quantity], run.valid, by, quantity, **styles[run.name] | validation)
            _curve(panels["rate"], run.train, by, "rate", 10.0**-exponent, **styles[run.name] | {"linewidth": 1.1})
        panels["perplexity"].set(yscale="log", title="perplexity")
        panels["perplexity"].yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
        thousands(panels["perplexity"].yaxis)
        for quantity in ("loss", "perplexity"):
            _crop(panels[quantity], drawn, by, quantity)
        panels["rate"].set(ylim=(0, None), title=f"learning rate (10{_superscript(exponent)})")
        panels["rate"].yaxis.set_major_locator(MaxNLocator(4, steps=STEPS))
        panels["loss"].set_title("loss (bits per token)")
        for name, axes in panels.items():
            axes.set(xlim=(0, None), xlabel="" if name == "perplexity" else AXES[by])
            axes.xaxis.set_major_locator(MaxNLocator(8 if name == "loss" else 5, steps=STEPS))
            thousands(axes.xaxis)
        panels["perplexity"].tick_params(labelbottom=False)
        legend_below(figure, handles, [*(kinds if few else ()), *labels])


def _along(point: Point, by: str) -> float:
    return {"updates": point.update, "tokens": point.tokens / 1e6, "minutes": point.minutes}[by]


def _curve(axes: Axes, points: Sequence[Point], by: str, quantity: str, scale: float = 1.0, **style: Any) -> None:
    values = [math.nan if getattr(point, quantity) is None else getattr(point, quantity) * scale for point in points]
    axes.plot([_along(point, by) for point in points], values, **style)


def _crop(axes: Axes, drawn: Sequence[Sequence[Point]], by: str, quantity: str) -> None:
    """Limit the vertical axis to the values after the ``BEGINNING`` of each training."""
    late = list[float]()
    for points in drawn:
        end = max(_along(point, by) for point in points)
        late += [getattr(point, quantity) for point in points if not _along(point, by) < BEGINNING * end]
    finite = [value for value in late if math.isfinite(value)]
    if not finite or min(finite) == max(finite):
        return
    low, high = min(finite), max(finite)
    if axes.get_yscale() == "log":
        margin = (high / low) ** 0.05
        axes.set_ylim(low / margin, high * margin)
    else:
        margin = (high - low) * 0.05
        axes.set_ylim(low - margin, high + margin)


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
