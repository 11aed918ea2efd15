"""Page of a comparison: claims with verdicts, a table of the runs, the settings in which they differ."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.terminal import aligned, markdown_table
from scripts.compare.intervals import FAILED, HELD, UNDECIDED, SeedVariance, difference, gains, pooled
from scripts.compare.plan import Claim, Comparison, Run
from scripts.config import flags
from scripts.fairseq_io.models import load_plugin, training_arguments
from scripts.scoring.score_names import KEYS, LOWER_IS_BETTER, NAMES
from scripts.scoring.selection import over
from scripts.tables.cells import EMPTY, Cell, Column, Number, as_grid, over_seeds
from scripts.tables.records import best_seed, lookup, metric, number, training_costs

ABSENT = "not run"
# what may explain a difference between runs, beside their configurations
_CIRCUMSTANCES = ("backend", "precision", "versions", "machine", "git.commit")
_HOW = (
    "Scores are of the test set, mean ± standard deviation over the seeds. A gain is the difference of the means, with "
    "its 95% interval: of the choice of the sentences (paired bootstrap; not of a perplexity), and of the seeds (one "
    "deviation, pooled over the models of several seeds; of none, if no model has several). A gain whose brackets hold "
    "0 is not statistically significant. A claim held if the whole of its brackets is on its side."
)


def claims(comparison: Comparison, runs: Mapping[str, Run]) -> list[str]:
    """A line for each claim: its verdict, and what it rests on."""
    seeds, lines = pooled(list(runs.values())), []
    for claim in comparison.claims:
        verdict, why = judge(claim, runs, seeds)
        difference_in_words = f"{claim.model} minus {claim.than}, at least {claim.at_least:g}"
        lines.append(f"{claim.says}: {verdict}. {difference_in_words}{f': {why}' if why else ''}.")
    return lines


def judge(claim: Claim, runs: Mapping[str, Run], seeds: SeedVariance | None) -> tuple[str, str]:
    """Return the verdict on a claim, and the gain or the reason that it rests on."""
    pair = [runs[name] for name in (claim.model, claim.than) if name in runs]
    if diverged := [run for run in pair if run.diverged]:
        verdict = UNDECIDED if len(diverged) == 2 else HELD if diverged[0].name == claim.than else FAILED
        return verdict, " and ".join(f"{run.name} diverged with seed {', '.join(run.diverged)}" for run in diverged)
    if len(pair) < 2 or not all(run.scores(pair[0].key) for run in pair):
        return ABSENT, ""
    gain = difference(pair[0], pair[1], seeds)
    if seeds is None or gain.half is None:
        return UNDECIDED, f"{gain}, and no run has several seeds, or one no counts of its lines"
    return gain.verdict(claim.at_least), str(gain)


def table(runs: Sequence[Run], baseline: Run) -> list[Column]:
    """Return a row for each run, and a column for each quantity that any run has, first the score for choosing."""
    gained = gains(runs, baseline)
    kinds, judged = {metric(run.record) for run in runs}, {run.judged for run in runs}
    columns = [Column("model", "model", [run.name for run in runs])]

    def add(*others: Column) -> None:
        columns.extend(column for column in others if not column.is_empty())

    def scores(keys: Iterable[str]) -> None:
        for key in keys:
            title = NAMES[key] + (" (lower is better)" if key in LOWER_IS_BETTER else "")
            valid = [over_seeds(lookup(run.record, f"summary.valid.{key}")) for run in runs]
            test = [over_seeds(over(values)) if (values := run.scores(key)) else None for run in runs]
            add(Column(f"valid {title}", f"valid_{key}", valid), Column(title, key, test))

    def gain(run: Run) -> Cell:
        interval = gained.get(run.name)
        return None if interval is None else Number(interval.value, "+.2f", low=interval.low, high=interval.high)

    keys = [key for kind in KEYS if kind in kinds for key in KEYS[kind]]
    scores(key for key in keys if key in judged)
    add(Column(f"{NAMES[baseline.key]} over {baseline.name}", f"{baseline.key}_gain", [gain(run) for run in runs]))
    # what stands between spaces is no word of a text that was never tokenised
    scores(key for key in keys if key not in judged and (key != "bleu" or judged != {"sacrebleu"}))
    seeds = [", ".join([*run.scored, *(f"{seed} (diverged)" for seed in run.diverged)]) or None for run in runs]
    speeds = [over_seeds(lookup(run.record, "speed.sentences_per_second"), ".1f") for run in runs]
    bests = [best_seed(run.record) for run in runs]
    generation = [number(best, "generation.sentences_per_second", ".1f") for best in bests]
    add(
        Column("parameters", "parameters", [number(run.record, "parameters", ",d") for run in runs]),
        Column("seeds", "seeds", seeds),
        Column("sentences/s", "sentences_per_second", speeds),
        Column("speed, x baseline", "speed_ratio", [number(run.record, "speed.ratio", ".2f") for run in runs]),
        Column("test set, sentences/s", "test_sentences_per_second", generation),
        *training_costs(bests),
    )
    return columns


def differences(runs: Sequence[Run]) -> list[list[str]]:
    """The settings and circumstances in which the runs differ, a column for each run; a dash where one has none.

    What a configuration leaves to its architecture or to fairseq, and another one sets, is shown as these have it.
    """
    settings = {run.name: _settings(run) for run in runs}
    names = [name for name in dict.fromkeys(itertools.chain(*settings.values())) if _differ(name, settings)]
    of_training = [name for name in names if name.startswith("train.")]
    if left_open := [name for name in of_training if any(name not in of_run for of_run in settings.values())]:
        for run in runs:
            settings[run.name] |= _parsed(run, left_open)
    rows = [[name, *(of_run.get(name, EMPTY) for of_run in settings.values())] for name in names]
    return [row for row in rows if _differ(row[0], settings)]


def _settings(run: Run) -> dict[str, str]:
    parts = [("", run.record["config"]), ("tuned", lookup(best_seed(run.record), "tuned"))]
    parts += [(part, lookup(run.record, part)) for part in _CIRCUMSTANCES]
    return {name: _text(value) for part in parts for name, value in _flat(*part) if value is not None}


def _differ(name: str, settings: Mapping[str, Mapping[str, str]]) -> bool:
    return len({of_run.get(name) for of_run in settings.values()}) > 1


def _parsed(run: Run, names: Sequence[str]) -> dict[str, str]:
    """Return the settings ``names`` of the section train as fairseq-train takes them from the run's flags.

    Nothing of a run whose flags or architecture this version no longer knows.
    """
    load_plugin()
    try:
        arguments = vars(training_arguments(flags(run.record["config"]["train"])))
    except UserError:
        return {}
    from lightconv_plugin.models.resolve import WITHOUT_KERNEL

    for side in ("encoder", "decoder"):
        if (
            arguments.get(f"{side}_conv_type") in WITHOUT_KERNEL
        ):  # which look everywhere, whatever the architecture says
            del arguments[f"{side}_kernel_size_list"]
    for width in (
        "embed_dim",
        "ffn_embed_dim",
    ):  # a decoder is as wide as its encoder, unless it has a width of its own
        if arguments.get(f"decoder_{width}") is None:
            arguments[f"decoder_{width}"] = arguments.get(f"encoder_{width}")
    values = {name: arguments.get(name.removeprefix("train.").replace("-", "_")) for name in names}
    return {name: _text(value) for name, value in values.items() if value is not None}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def as_text(runs: Sequence[Run], baseline: Run, verdicts: Sequence[str] = ()) -> str:
    """All of it for a terminal; a run is a column, since there are more quantities than runs."""
    columns = [list(column) for column in zip(*as_grid(table(runs, baseline)), strict=True)]
    settings = [["different in", *(run.name for run in runs)], *differences(runs)]
    lines = aligned(settings, left=1, rule=True) if len(settings) > 1 else ["They do not differ in any setting."]
    blocks = (verdicts, aligned(columns, left=1, rule=True), lines, [_HOW])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def as_markdown(about: str, runs: Sequence[Run], baseline: Run, verdicts: Sequence[str]) -> str:
    """All of it as a page."""
    (header, *rows), different = as_grid(table(runs, baseline)), differences(runs)
    parts = [
        f"# {about}",
        "Written by `python -m scripts.compare` from the records of the runs.",
        _HOW,
        "\n".join(f"- {verdict}" for verdict in verdicts),
        markdown_table(header, rows),
        markdown_table(["different in", *(run.name for run in runs)], different) if different else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
