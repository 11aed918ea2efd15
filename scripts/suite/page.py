"""The page of a suite: claims with their verdicts, tables, pictures, and what all of it was measured with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from scripts.common.figure import open_figure
from scripts.common.files import atomic_file
from scripts.common.terminal import clock, markdown_table
from scripts.fairseq_io.loss_curve import draw_losses
from scripts.scoring.score_names import LOWER_IS_BETTER, NAMES
from scripts.scoring.selection import over
from scripts.suite import overlap
from scripts.suite.plan import QUANTITIES, Suite, chosen, trial_jobs
from scripts.suite.records import SCORES
from scripts.suite.results import ABSENT, Dataset, Interval, collect, findings, overall
from scripts.tables.records import EMPTY, rows_of, spread

FILES = ("keep-last-epochs", "no-epoch-checkpoints")  # settings that change no training
BEGIN = "Written by `python -m scripts.suite "


def write(suite: Suite) -> None:
    """Write the page and, in a folder of its name, its pictures."""
    datasets = collect(suite)
    parts = [f"# {suite.about}", introduction(suite), *(["## The claims"] if suite.claims else [])]
    parts += claims(suite, datasets)
    for dataset in datasets:
        shown = [f"![{name}]({suite.page.stem}/{path.name})" for name, path in draw(dataset, suite.records).items()]
        parts += [f"## {dataset.name}", *of_dataset(dataset), *shown]
    parts += [*trials(suite), *provenance(datasets), *checks(suite)]
    with atomic_file(suite.page) as f:
        f.write("\n\n".join(parts) + "\n")


def is_page(path: Path) -> bool:
    """Return True if a file is a page of a suite's."""
    return path.is_file() and BEGIN in path.read_text(encoding="utf-8", errors="replace")


def introduction(suite: Suite) -> str:
    """The sentences that a reader of the tables needs."""
    name = Path(suite.baseline).name
    return (
        f"{BEGIN}{_short(suite.file)} --out {_short(suite.page)}` from the records of its runs; with `--page-only` "
        "from what there is, without running anything.\n\n"
        "Scores are of the test set, mean ± standard deviation over the seeds. A gain is the difference of the means, "
        "with a 95% interval. It covers the choice of the test set (paired bootstrap over its sentences) and of the "
        "seeds (one deviation, pooled over all models of several seeds); for a perplexity, the seeds only. p is "
        f"sacreBLEU's, of the hypotheses of all seeds that the model and {name} share, one after another. It counts a "
        "sentence once for each seed, and so is too small where there are several. "
        "Length is that of the hypotheses over that of the references, and the score at any length sacreBLEU without "
        "its penalty for being short. The brackets of a speed are the least and the greatest of its rounds, with one "
        "seed. A claim held if the whole of its brackets is on its side."
    )


def _short(path: Path) -> str:
    parts = path.resolve().parts
    return "/".join(parts[parts.index("configs") :]) if "configs" in parts else path.name


def claims(suite: Suite, datasets: Sequence[Dataset]) -> list[str]:
    """A paragraph for each claim: its verdict, and of each dataset the figure with its interval and verdict."""
    found = []
    for claim in suite.claims:
        results = findings(claim, datasets)
        model, than, (form, unit) = Path(claim.model).name, Path(claim.than).name, QUANTITIES[claim.of]
        what = f"{model} {'minus' if claim.of == 'score' else 'to'} {than}, at least {claim.at_least:g}{unit}"
        figures = []
        for each in results:
            words = [interval(each.figure, form) if each.figure else "", each.note, each.verdict]
            figures.append(f"{each.dataset}: {', '.join(filter(None, words))}")
        found.append(f"**{claim.says}**: {overall(results)}. {what}; {'; '.join(figures) or ABSENT}.")
    return found


def interval(figure: Interval, form: str = QUANTITIES["score"][0]) -> str:
    """A figure with its interval in brackets."""
    about = "" if figure.low is None else f" [{figure.low:{form}}, {figure.high:{form}}]"
    return f"{figure.value:{form}}{about}"


def table(lines: Sequence[Mapping[str, str]]) -> str:
    """A table in Markdown of lines by heading."""
    header, *rows = rows_of(lines)
    return markdown_table(header, rows)


def of_dataset(dataset: Dataset) -> list[str]:
    """The tables of a dataset and the sentences under them."""
    parts = []
    if dataset.models:
        parts += [scores(dataset), costs(dataset), *(speeds(dataset) if dataset.speeds else [])]
        parts += overlaps(dataset) if dataset.kind == "bleu" else []
    if dataset.diverged:
        parts.append(f"Diverged: {', '.join(map(''.join, dataset.diverged.items()))}.")
    if left := [job.config.name for job in dataset.jobs if job.waits or job.missing]:
        parts.append(f"Not run, or not to the end: {', '.join(left)}.")
    return parts


def scores(dataset: Dataset) -> str:
    """The table of scores and of what each model gains over the baseline."""
    lines, baseline = [], dataset.baseline
    for name, model in dataset.models.items():
        line = {"model": name, "parameters": f"{model.record['parameters']:,}"}
        line["seeds"] = ", ".join(map(str, model.scored))
        for key in SCORES[dataset.kind]:
            lower = " (lower is better)" if key in LOWER_IS_BETTER else ""
            line[f"{NAMES[key]}{lower}"] = spread(over(model.scores(key)))
        if dataset.kind == "bleu":
            ratios, scores_ = zip(*dataset.brevity(name), strict=True)
            line |= {"length": spread(over(list(ratios))), "sacreBLEU at any length": spread(over(list(scores_)))}
        gain = [EMPTY] * 3
        if name != baseline and baseline in dataset.models:
            p_values = (EMPTY if p is None else f"{p:.4f}" for p in dataset.p_values(name, baseline))
            gain = [interval(dataset.difference(name, baseline)), *p_values]
        line |= zip((f"gain over {baseline}", "p, bootstrap", "p, randomised"), gain, strict=True)
        lines.append(line)
    return table(lines)


def costs(dataset: Dataset) -> str:
    """The table of what training and generating took; times by seed, since each may be of another machine."""

    def mean(values: Sequence[float], form: str) -> str:
        return format(fmean(values), form) if values else EMPTY

    lines = []
    for name, model in dataset.models.items():
        losses = [list(log.valid_loss.values()) for log in model.logs().values() if log.valid_loss]
        tuned = [model.seeds[seed]["tuned"] or {} for seed in model.scored]
        rates = model.costs("training", "tokens_per_second")
        line = {
            "model": name,
            "updates": mean(model.costs("training", "updates"), ",.0f"),
            "least loss on validation": mean([min(each) for each in losses], ".3f"),
            "its last change": mean([each[-1] - each[-2] for each in losses if len(each) > 1], "+.3f"),
            "training": "; ".join(map(clock, model.costs("training", "seconds"))) or EMPTY,
            "training tokens/s": "; ".join(f"{rate:,.0f}" for rate in rates) or EMPTY,
            "MB in training": mean(model.costs("training", "peak_mb"), ",.0f"),
            "MB in generating": mean(model.costs("generation", "peak_mb"), ",.0f"),
            "tuned": "; ".join(dict.fromkeys(map(_settings, tuned))) or EMPTY,
        }
        lines.append(line)
    return table(lines)


def speeds(dataset: Dataset) -> list[str]:
    """The table of sentences a second by length, and their ratio to the baseline's."""
    found, lines = dataset.speeds, []
    for name, seconds in found["seconds"].items():
        line = {"sentences/s (times the baseline), source tokens:": name}
        for least, count in found["lines"].items():
            ratio = dataset.speed(name, dataset.baseline, least)
            beside = f" ({median(ratio):.2f})" if ratio else ""
            line[f"from {least}"] = f"{count / median(seconds[least]):.1f}{beside}"
        lines.append(line)
    made = found["made_from"]["conditions"]
    below = (
        f"Median of {made['rounds']} rounds, the models in turns, with weights {made['weights']}; "
        f"{_settings(made['settings'])}, at most {made['lines']} sentences a batch, "
        f"hypotheses of {', '.join(map(str, found['tokens'].values()))} tokens, {made['threads']} threads of "
        f"{made['machine']['cores']} cores ({made['machine']['cpu']}), torch {made['versions']['torch']}, "
        f"commit {made['commit']}."
    )
    return [table(lines), below]


def overlaps(dataset: Dataset) -> list[str]:
    """The overlap of test and training text, and the scores on the lines that do not."""
    found = dataset.facts["overlap"]
    lines, apart = found["lines"], found["apart"]
    text = (
        f"Overlap: of the {lines:,} lines of the test set {lines - apart:,} ({1 - apart / lines:.0%}) share a run of "
        f"{overlap.RUN} words, or the whole of a shorter line, on either side, with the training text"
    )
    if found["in_families"] is not None:
        text += f"; {found['in_families']:,} are of a family of packages of which other lines are trained on"
    titles = {key: f"{NAMES[key]}, the {apart:,} lines apart" for key in dataset.measures}
    shown = [
        {"model": name, **{title: spread(over(model.costs("apart", key))) for key, title in titles.items()}}
        for name, model in dataset.models.items()
    ]
    return [text + ".", *([table(shown)] if apart else [])]


def trials(suite: Suite) -> list[str]:
    """The tables of the trials: the least loss on validation of each."""
    best, parts = chosen(suite), ["## The trials"] if suite.trials else []
    for each in suite.trials:
        lines: dict[str, dict[str, str]] = {}
        machines: dict[str, None] = {}
        for job in trial_jobs(replace(suite, trials=(each,))):
            machines |= dict.fromkeys(_words(facts["machine"]) for facts in job.seeds.values())
            mark = "**" if best.get(job.model) == job.choice else ""
            shown = "not run" if job.loss is None else f"{mark}{job.loss:.3f}{mark}"
            lines.setdefault(job.model, {"model": Path(job.model).name})[_settings(job.choice)] = shown
        given = "".join(f", {key} {value}" for key, value in each.train.items() if key not in FILES)
        how = f"Trained on {each.dataset} with seed {each.seed}{given} ({'; '.join(machines) or 'nowhere yet'})"
        parts += [f"{how}; the least loss on validation:", table(list(lines.values()))]
        like = [f"{Path(model).name} as {Path(other).name}" for model, other in each.like.items()]
        parts += [f"Trained with the values of another: {', '.join(like)}."] if like else []
    return parts


def provenance(datasets: Sequence[Dataset]) -> list[str]:
    """Machines, versions, precisions and commits of all runs that have scores, and which runs are not of the usual."""
    lines = []
    for title, key in (("Machine", "machine"), ("Versions", "versions"), ("Precision", "precision"), ("Commit", "git")):
        names: dict[str, list[str]] = {}
        for model in (model for dataset in datasets for model in dataset.models.values()):
            for seed in model.scored:
                found = model.seeds[seed][key]
                value = _words(found) if key != "git" else "unknown"
                if key == "git" and found is not None:
                    value = found["commit"][:12] + (" with changes" if found["changed"] else "")
                names.setdefault(value, []).append(model.config.name)
        usual = max(names.values(), key=len, default=[])
        for value, of in names.items():
            whose = "" if of is usual else f" of {', '.join(dict.fromkeys(of))}"
            lines.append(f"- {title} ({len(of)}{whose}): {value}")
    return ["## What it was run with", "\n".join(lines)] if lines else []


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items() if item)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def checks(suite: Suite) -> list[str]:
    """Say what the page rests on, and how to doubt it."""
    command = f"python -m scripts.suite {_short(suite.file)}"
    return [
        "## To check it",
        f"`{command} --page-only --out {_short(suite.page)}` makes this page again from the records in "
        f"`{suite.page.stem}/`. They have each run's configuration, its scores, losses and costs, the counts of each "
        "line that sacreBLEU makes its score of, and the SHA-256 of hypotheses and averaged model. With "
        "`--archive FILE.tar.gz` the hypotheses, logs and models that are on the machine go into an archive, with "
        "commands that give the figures above. With another `--out` and another `--work` the command runs everything "
        "again.",
    ]


def draw(dataset: Dataset, folder: Path) -> dict[str, Path]:
    """The pictures of a dataset, by what they show."""
    pictures = {}
    logs = {
        name: {seed: log for seed, log in model.logs().items() if log.valid_loss}
        for name, model in dataset.models.items()
    }
    if any(logs.values()):
        pictures["losses of all runs"] = path = folder / f"{dataset.name}.losses.svg"
        draw_losses(logs, path)
    if dataset.speeds and len(dataset.models) > 1:
        pictures["speed against quality"] = path = folder / f"{dataset.name}.speed.svg"
        draw_speeds(dataset, path)
    return pictures


def draw_speeds(dataset: Dataset, out: Path) -> None:
    """The score of each model against its sentences a second over all lengths."""
    found = dataset.speeds
    with open_figure(out, width=7, height=4.5) as figure:
        axes = figure.subplots()
        for number, (name, model) in enumerate(dataset.models.items()):
            if name in found["seconds"]:
                taken = sum(median(rounds) for rounds in found["seconds"][name].values())
                scores = over(model.scores(dataset.key))
                at = sum(found["lines"].values()) / taken, scores["mean"]
                axes.errorbar(*at, yerr=scores["std"] or 0.0, fmt="o", color=f"C{number % 10}", markersize=5)
                axes.annotate(name, at, (4, 4), textcoords="offset points", fontsize=7)
        axes.set_xlabel("sentences/s, all lengths together")
        axes.set_ylabel(NAMES[dataset.key])
        axes.grid(alpha=0.3)
        axes.margins(0.15)
