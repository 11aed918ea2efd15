"""Page of a comparison: claims with verdicts, tables of scores and speeds, the settings in which the runs differ."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
from scripts.tables.records import best_seed, flat, lookup, metric, number, training_costs

NOT_RUN = "not run"
# parts of a record that may explain a difference between runs, besides their configurations
_CIRCUMSTANCES = ("backend", "precision", "versions", "machine", "git.commit")
_EXPLANATION = (
    "Scores are those of the test set: mean ± standard deviation over the seeds. A gain is a difference of two means "
    "(for perplexities, where lower is better, the baseline's minus the run's) "
    "with its 95% confidence interval, which covers the choice of the test sentences (paired bootstrap; not for "
    "perplexities) and the choice of the seeds (one variance, pooled over the runs of several seeds; not covered if "
    "there is no such run). A gain whose interval contains 0 is not statistically significant at the 5% level; nothing "
    "is corrected for the number of comparisons. A claim held if its whole interval lies on the claimed side."
)


def claims(comparison: Comparison, runs: Mapping[str, Run]) -> list[str]:
    """Return a line for each claim: its verdict, and the gain that the verdict rests on."""
    seeds, lines = pooled(list(runs.values())), []
    for claim in comparison.claims:
        verdict, reason = judge(claim, runs, seeds)
        inequality = f"{claim.model} minus {claim.than}, at least {claim.at_least:g}"
        lines.append(f"{claim.says}: {verdict}. {inequality}{f': {reason}' if reason else ''}.")
    return lines


def judge(claim: Claim, runs: Mapping[str, Run], seeds: SeedVariance | None) -> tuple[str, str]:
    """Return the verdict on a claim, and the gain or the reason that it rests on."""
    pair = [runs[name] for name in (claim.model, claim.than) if name in runs]
    if diverged := [run for run in pair if run.diverged]:
        verdict = UNDECIDED if len(diverged) == 2 else HELD if diverged[0].name == claim.than else FAILED
        return verdict, " and ".join(f"{run.name} diverged with seed {', '.join(run.diverged)}" for run in diverged)
    if len(pair) < 2 or not all(run.scores(pair[0].key) for run in pair):
        return NOT_RUN, ""
    gain = difference(pair[0], pair[1], seeds)
    if seeds is None or gain.half is None:
        return UNDECIDED, f"{gain}; an interval needs a run of several seeds, and records with counts of each line"
    return gain.verdict(claim.at_least), str(gain)


def table(runs: Sequence[Run], baseline: Run) -> list[Column]:
    """Return a row for each run, and a column for each quantity that any run has, first the score for choosing."""
    gains_by_name = gains(runs, baseline)
    kinds, chosen_by = {metric(run.record) for run in runs}, {run.chosen_by for run in runs}
    columns = [Column("model", "model", [run.name for run in runs])]

    def add(*candidates: Column) -> None:
        columns.extend(column for column in candidates if not column.is_empty())

    def add_scores(keys: Iterable[str]) -> None:
        for key in keys:
            title = NAMES[key] + (" (lower is better)" if key in LOWER_IS_BETTER else "")
            valid = [over_seeds(lookup(run.record, f"summary.valid.{key}")) for run in runs]
            test = [_over(run.scores(key)) for run in runs]
            add(Column(f"valid {title}", f"valid_{key}", valid), Column(title, key, test))

    def gain(run: Run) -> Cell:
        interval = gains_by_name.get(run.name)
        return None if interval is None else Number(interval.value, "+.2f", low=interval.low, high=interval.high)

    keys = [key for kind in KEYS if kind in kinds for key in KEYS[kind]]
    add_scores(key for key in keys if key in chosen_by)
    side = "below" if baseline.key in LOWER_IS_BETTER else "over"
    add(Column(f"{NAMES[baseline.key]} {side} {baseline.name}", f"{baseline.key}_gain", [gain(run) for run in runs]))
    # BLEU counts words between spaces, which text that was never tokenised does not have
    add_scores(key for key in keys if key not in chosen_by and (key != "bleu" or chosen_by != {"sacrebleu"}))
    add(*_lengths(runs))
    seeds = [", ".join([*run.scored, *(f"{seed} (diverged)" for seed in run.diverged)]) or None for run in runs]
    speeds = [over_seeds(lookup(run.record, "speed.sentences_per_second"), ".1f") for run in runs]
    generation = [number(best_seed(run.record), "generation.sentences_per_second", ".1f") for run in runs]
    add(
        Column("parameters", "parameters", [number(run.record, "parameters", ",d") for run in runs]),
        Column("seeds", "seeds", seeds),
        Column("sentences/s", "sentences_per_second", speeds),
        Column("speed, x baseline", "speed_ratio", [number(run.record, "speed.ratio", ".2f") for run in runs]),
        Column("test set, sentences/s", "test_sentences_per_second", generation),
        *training_costs([run.record for run in runs]),
    )
    return columns


def _over(values: list[float]) -> Number | None:
    return over_seeds(over(values)) if values else None


def _lengths(runs: Sequence[Run]) -> list[Column]:
    """Return the hypotheses' length over the references', and sacreBLEU without its penalty for being shorter."""
    scores = [run.sacrebleu_scores() for run in runs]
    ratios = [_over([score.sys_len / score.ref_len for score in of_run]) for of_run in scores]
    precisions = [_over([score.score / (score.bp or 1.0) for score in of_run]) for of_run in scores]
    return [
        Column("length, hypotheses / references", "length_ratio", ratios),
        Column("sacreBLEU without brevity penalty", "sacrebleu_no_penalty", precisions),
    ]


def speed_table(runs: Sequence[Run]) -> list[Column]:
    """Return a row for each run with speeds at several lengths of lines; no columns if there is no such run.

    Each length has two columns: sentences per second, and this speed divided by the baseline's in the same measurement.
    """
    runs = [run for run in runs if run.speeds()]
    lengths = sorted({length for run in runs for length in run.speeds()})
    columns = [Column("model", "model", [run.name for run in runs])]
    for length in lengths:
        speeds = [over_seeds(run.speeds().get(length), ".1f") for run in runs]
        ratios = [_ratio(run.speeds().get(length), run.speeds("speed.baseline").get(length)) for run in runs]
        columns.append(Column(f"from {length} subwords: sentences/s", f"sentences_per_second_from_{length}", speeds))
        columns.append(Column("x baseline", f"speed_ratio_from_{length}", ratios))
    return columns if lengths else []


def _ratio(speed: Mapping[str, Any] | None, baseline: Mapping[str, Any] | None) -> Number | None:
    return Number(speed["mean"] / baseline["mean"]) if speed and baseline else None


def _speed_title(runs: Sequence[Run]) -> str:
    """Return the sentence above the table of speeds: the baseline, whose weights were timed, and the settings."""
    runs = [run for run in runs if run.speeds()]
    baselines = dict.fromkeys(filter(None, (lookup(run.record, "speed.baseline.model") for run in runs)))
    weights = dict.fromkeys("trained" if lookup(run.record, "speed.trained") else "random" for run in runs)
    settings = dict.fromkeys(
        f"{name} {_text(value)}"
        for run in runs
        for name, value in (lookup(run.record, "speed.settings") or {}).items()
        if value is not None
    )
    title = "Speed of generation in batches of source lines of like length, mean ± standard deviation over the rounds"
    parts = [title, f"{' and '.join(weights)} weights", *settings]
    return "; ".join(parts) + (f"; the baseline is {', '.join(baselines)}." if baselines else ".")


def machines(runs: Sequence[Run]) -> str:
    """Return the machine of most runs, and the runs that were made on other machines; empty if none is recorded."""
    names_by_machine: dict[str, list[str]] = {}
    for run in runs:
        if machine := lookup(run.record, "machine"):
            words = ", ".join(f"{part} {_text(value)}" for part, value in machine.items() if value)
            names_by_machine.setdefault(words, []).append(run.name)
    by_number = sorted(names_by_machine.items(), key=lambda item: -len(item[1]))
    exceptions = [f"; {', '.join(names)}: {words}" for words, names in by_number[1:]]
    return f"Machine: {by_number[0][0]}{''.join(exceptions)}." if by_number else ""


def differences(runs: Sequence[Run]) -> list[list[str]]:
    """Return the settings and circumstances in which the runs differ, a column for each run; a dash for a missing one.

    If one configuration sets what another leaves to its architecture or to fairseq, the latter's default is shown.
    """
    settings = {run.name: _settings(run) for run in runs}
    names = [name for name in dict.fromkeys(itertools.chain(*settings.values())) if _differ(name, settings)]
    train_names = [name for name in names if name.startswith("train.")]
    if defaults := [name for name in train_names if any(name not in of_run for of_run in settings.values())]:
        for run in runs:
            settings[run.name] = _parsed(run, defaults, settings[run.name])
    rows = [[name, *(of_run.get(name, EMPTY) for of_run in settings.values())] for name in names]
    return [row for row in rows if _differ(row[0], settings)]


def _settings(run: Run) -> dict[str, str]:
    parts = [("", run.record["config"]), ("tuned", lookup(best_seed(run.record), "tuned"))]
    parts += [(part, lookup(run.record, part)) for part in _CIRCUMSTANCES]
    return {name: _text(value) for part in parts for name, value in flat(*part) if value is not None}


def _differ(name: str, settings: Mapping[str, Mapping[str, str]]) -> bool:
    return len({of_run.get(name) for of_run in settings.values()}) > 1


def _parsed(run: Run, names: Sequence[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return ``settings`` with those of ``names`` as fairseq-train parses them from the run's flags, defaults included.

    They stay as they are if this version no longer has the run's flags or architecture.
    """
    load_plugin()
    try:
        arguments = vars(training_arguments(flags(run.record["config"]["train"])))
    except UserError:
        return dict(settings)
    from lightconv_plugin.models.resolve import WITHOUT_KERNEL

    for side in ("encoder", "decoder"):
        # mixers that read all positions ignore the architecture's kernel sizes
        if arguments.get(f"{side}_conv_type") in WITHOUT_KERNEL:
            del arguments[f"{side}_kernel_size_list"]
    for width in ("embed_dim", "ffn_embed_dim"):
        # a decoder without a width of its own is as wide as its encoder
        if arguments.get(f"decoder_{width}") is None:
            arguments[f"decoder_{width}"] = arguments.get(f"encoder_{width}")
    values = {name: arguments.get(name.removeprefix("train.").replace("-", "_")) for name in names}
    unparsed = {name: value for name, value in settings.items() if name not in values}
    return unparsed | {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def as_text(runs: Sequence[Run], baseline: Run, verdicts: Sequence[str] = ()) -> str:
    """Return the whole comparison for a terminal. Each run is a column: there are more quantities than runs."""
    columns = [list(column) for column in zip(*as_grid(table(runs, baseline)), strict=True)]
    speeds = speed_table(runs)
    settings = [["different in", *(run.name for run in runs)], *differences(runs)]
    lines = aligned(settings, left=1, rule=True) if len(settings) > 1 else ["They do not differ in any setting."]
    blocks = (
        verdicts,
        aligned(columns, left=1, rule=True),
        [_speed_title(runs), *aligned(as_grid(speeds), left=1, rule=True)] if speeds else [],
        lines,
        [_EXPLANATION],
    )
    return "\n\n".join("\n".join(block) for block in blocks if block)


def as_markdown(about: str, command: str, runs: Sequence[Run], baseline: Run, verdicts: Sequence[str]) -> str:
    """Return the whole comparison as a page, with the ``command`` that writes it."""
    header, *rows = as_grid(table(runs, baseline))
    speeds = as_grid(speed_table(runs))
    parts = [
        f"# {about}",
        f"Written by `{command}` from the records of the runs. {machines(runs)}".rstrip(),
        _EXPLANATION,
        "\n".join(f"- {verdict}" for verdict in verdicts),
        markdown_table(header, rows),
        f"{_speed_title(runs)}\n\n{markdown_table(speeds[0], speeds[1:])}" if len(speeds) > 1 else "",
        _settings_list(runs, baseline),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _settings_list(runs: Sequence[Run], baseline: Run) -> str:
    """Return a line for each run: the settings in which it differs from the baseline, whose own are in the first."""
    rows = differences(runs)
    position = [run.name for run in runs].index(baseline.name) + 1
    lines = []
    for column, run in enumerate(runs, 1):
        is_baseline = column == position
        values = [f"{row[0]} {row[column]}" for row in rows if is_baseline or row[column] != row[position]]
        lines.append((not is_baseline, f"- {run.name}: {'; '.join(values) or 'no difference'}"))
    title = f"The settings of {baseline.name} in which any run differs from it, then those of the others:"
    return "\n".join([title, "", *(line for _, line in sorted(lines, key=lambda line: line[0]))]) if rows else ""
