"""Page of a comparison: claims with verdicts, a table of the runs, the settings in which they differ.

The interval of a difference has two parts, as of independent errors: the test set's, by paired bootstrap, and the
seeds', by one deviation, pooled over the models of several seeds. That is a rough estimate from few seeds, so the
interval is Student's, with Satterthwaite's degrees of freedom.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from scipy.stats import t as student

from data_prep.common.errors import UserError
from data_prep.common.terminal import aligned, clock, markdown_table
from scripts.compare.plan import Claim, Comparison, Run
from scripts.scoring.score_names import KEYS, LOWER_IS_BETTER, NAMES
from scripts.scoring.selection import over
from scripts.scoring.significance import standard_error
from scripts.tables.records import EMPTY, best_seed, lookup, metric, number, spread

HELD, FAILED, UNDECIDED, ABSENT = "held", "did not hold", "cannot be told at this size", "not run"
# what may explain a difference between runs, beside their configurations
_CIRCUMSTANCES = ("backend", "precision", "versions", "machine", "git.commit")
_HOW = (
    "Scores are of the test set, mean ± standard deviation over the seeds. A gain is the difference of the means, with "
    "its 95% interval: of the choice of the sentences (paired bootstrap; not of a perplexity), and of the seeds (one "
    "deviation, pooled over the models of several seeds; of none, if no model has several). Where the brackets hold 0, "
    "the gain may be chance. A claim held if the whole of its brackets is on its side."
)


@dataclass(frozen=True)
class Interval:
    """A figure and half its 95% interval; None where nothing tells how sure it is."""

    value: float
    half: float | None

    def __str__(self) -> str:
        ends = "" if self.half is None else f" [{self.value - self.half:+.2f}, {self.value + self.half:+.2f}]"
        return f"{self.value:+.2f}{ends}"

    def verdict(self, at_least: float) -> str:
        """Return whether the figure is at least so much."""
        over = self.value - at_least
        if self.half is None or -self.half <= over < self.half:
            return UNDECIDED
        return HELD if over > 0 else FAILED


def pooled(runs: Sequence[Run]) -> tuple[float, int] | None:
    """The variance of a score over the seeds and its degrees of freedom, of the runs of several seeds, if any."""
    several = [scores for run in runs if len(scores := run.scores(run.key)) > 1]
    freedom = sum(len(scores) - 1 for scores in several)
    return (sum(variance(scores) * (len(scores) - 1) for scores in several) / freedom, freedom) if freedom else None


def difference(run: Run, other: Run, seeds: tuple[float, int] | None) -> Interval:
    """The score of a run minus that of another; of perplexities, of which less is better, the other way round.

    Args:
        seeds: what ``pooled`` says; without it the interval is the test set's alone.

    Raises:
        UserError: the runs are of other test sets.
    """
    one, two = run.scores(run.key), other.scores(run.key)
    value, of_lines, of_seeds = fmean(one) - fmean(two), 0.0, 0.0
    ours, theirs = run.lines(), other.lines()
    if run.counted is None:
        value = -value
    elif ours and theirs:
        if {len(lines) for lines in [*ours, *theirs]} != {len(ours[0])}:
            raise UserError(f"{run.name} and {other.name} are scored on other test sets")
        of_lines = standard_error(run.counted, ours, theirs) ** 2
    if seeds:
        of_seeds = seeds[0] * (1 / len(one) + 1 / len(two))
    if not (seeds if run.counted is None else ours and theirs):
        return Interval(value, None)
    freedom = seeds[1] * (1 + of_lines / of_seeds) ** 2 if seeds and of_seeds else math.inf
    return Interval(value, float(student.ppf(0.975, freedom)) * math.sqrt(of_seeds + of_lines))


def gains(runs: Sequence[Run], baseline: Run) -> dict[str, Interval]:
    """The differences to the baseline by the names of the runs that have one."""
    alike = [run for run in runs if run.key == baseline.key and run.scores(run.key)]
    seeds = pooled(alike)
    return {run.name: difference(run, baseline, seeds) for run in alike if run is not baseline and baseline in alike}


def claims(comparison: Comparison, runs: Mapping[str, Run]) -> list[str]:
    """A line for each claim: its verdict, and what it rests on."""
    seeds, lines = pooled(list(runs.values())), []
    for claim in comparison.claims:
        verdict, why = judge(claim, runs, seeds)
        what = f"{claim.model} minus {claim.than}, at least {claim.at_least:g}"
        lines.append(f"{claim.says}: {verdict}. {what}{f': {why}' if why else ''}.")
    return lines


def judge(claim: Claim, runs: Mapping[str, Run], seeds: tuple[float, int] | None) -> tuple[str, str]:
    """Return the verdict on a claim, and the figure or the reason that it rests on."""
    two = [runs[name] for name in (claim.model, claim.than) if name in runs]
    if diverged := [run for run in two if run.diverged]:
        verdict = UNDECIDED if len(diverged) == 2 else HELD if diverged[0].name == claim.than else FAILED
        return verdict, " and ".join(f"{run.name} diverged with seed {', '.join(run.diverged)}" for run in diverged)
    if len(two) < 2 or not all(run.scores(two[0].key) for run in two):
        return ABSENT, ""
    figure = difference(two[0], two[1], seeds)
    if seeds is None or figure.half is None:
        return UNDECIDED, f"{figure}, and no run has several seeds, or one no counts of its lines"
    return figure.verdict(claim.at_least), str(figure)


def figures(runs: Sequence[Run], baseline: Run) -> list[list[str]]:
    """Return a row for each run, and a column for each quantity that any run has, their own score first."""
    gained = gains(runs, baseline)
    kinds, own = {metric(run.record) for run in runs}, {run.judged for run in runs}
    columns: dict[str, list[str]] = {"model": [run.name for run in runs]}

    def column(title: str, cells: list[str]) -> None:
        if any(cell != EMPTY for cell in cells):
            columns[title] = cells

    def scores(keys: Iterable[str]) -> None:
        for key in keys:
            title = NAMES[key] + (" (lower is better)" if key in LOWER_IS_BETTER else "")
            column(f"valid {title}", [spread(lookup(run.record, f"summary.valid.{key}")) for run in runs])
            of_runs = [run.scores(key) for run in runs]
            column(title, [spread(over(scores)) if scores else EMPTY for scores in of_runs])

    keys = [key for kind in KEYS if kind in kinds for key in KEYS[kind]]
    scores(key for key in keys if key in own)
    column(f"{NAMES[baseline.key]} over {baseline.name}", [str(gained.get(run.name, EMPTY)) for run in runs])
    # what stands between blanks is no word of a text that was never tokenised
    scores(key for key in keys if key not in own and (key != "bleu" or own != {"sacrebleu"}))
    column("parameters", [number(run.record, "parameters", ",d") for run in runs])
    seeds = [[*run.scored, *(f"{seed} (diverged)" for seed in run.diverged)] for run in runs]
    column("seeds", [", ".join(each) or EMPTY for each in seeds])
    column("sentences/s", [spread(lookup(run.record, "speed.sentences_per_second"), ".1f") for run in runs])
    column("speed, x baseline", [number(run.record, "speed.ratio", ".2f") for run in runs])
    bests = [best_seed(run.record) for run in runs]
    column("test set, sentences/s", [number(best, "generation.sentences_per_second", ".1f") for best in bests])
    times = [lookup(best, "training.seconds") for best in bests]
    column("training", [EMPTY if seconds is None else clock(seconds) for seconds in times])
    column("training, tokens/s", [number(best, "training.tokens_per_second", ",.0f") for best in bests])
    return [list(row) for row in zip(*([title, *cells] for title, cells in columns.items()), strict=True)]


def differences(runs: Sequence[Run]) -> list[list[str]]:
    """The settings and circumstances in which the runs differ, a column for each run; a dash where one has none."""
    settings = []
    for run in runs:
        parts = [("", run.record["config"]), ("tuned", lookup(best_seed(run.record), "tuned"))]
        parts += [(part, lookup(run.record, part)) for part in _CIRCUMSTANCES]
        settings.append({key: _text(value) for part in parts for key, value in _flat(*part)})
    names = dict.fromkeys(name for each in settings for name in each)
    rows = [[name, *(each.get(name, EMPTY) for each in settings)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value


def _text(value: Any) -> str:
    return EMPTY if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)


def as_text(runs: Sequence[Run], baseline: Run, verdicts: Sequence[str] = ()) -> str:
    """All of it for a terminal; a run is a column, since there are more quantities than runs."""
    table = [list(column) for column in zip(*figures(runs, baseline), strict=True)]
    settings = [["different in", *(run.name for run in runs)], *differences(runs)]
    lines = aligned(settings, left=1, rule=True) if len(settings) > 1 else ["They do not differ in any setting."]
    blocks = (verdicts, aligned(table, left=1, rule=True), lines, [_HOW])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def as_markdown(about: str, runs: Sequence[Run], baseline: Run, verdicts: Sequence[str]) -> str:
    """All of it as a page."""
    (header, *rows), different = figures(runs, baseline), differences(runs)
    parts = [
        f"# {about}",
        "Written by `python -m scripts.compare` from the records of the runs.",
        _HOW,
        "\n".join(f"- {verdict}" for verdict in verdicts),
        markdown_table(header, rows),
        markdown_table(["different in", *(run.name for run in runs)], different) if different else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
