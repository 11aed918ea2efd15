"""Put runs side by side: scores, speed, parameters, the settings in which they differ, and their loss curves.

RUN is the folder of a run, work/<dataset>/<model>. With --out the losses of every seed that has been begun are drawn,
from seed<N>/checkpoints/train.log.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.terminal import aligned, clock
from scripts.fairseq_io.loss_curve import draw_losses
from scripts.fairseq_io.trainlog import TrainLog, read_log_file
from scripts.scoring.score_names import KEYS, LOWER_IS_BETTER, NAMES
from scripts.tables.records import EMPTY, best_seed, lookup, metric, number, read_record, spread, tested

# what may explain a difference between runs, beside their configurations
_CIRCUMSTANCES = ("backend", "versions", "machine", "git.commit")
_LONGEST = 60  # letters of a setting


@dataclass(frozen=True)
class Run:
    """A run: its folder, its record, and what it is called beside the others."""

    folder: Path
    record: Mapping[str, Any]
    name: str

    def logs(self) -> dict[int, TrainLog]:
        """The training logs of its seeds that have losses, by seed."""
        found = self.folder.glob("seed[0-9]*/checkpoints/train.log")
        paths = {int(seed): path for path in found if (seed := path.parts[-3][4:]).isdecimal()}
        logs = {seed: read_log_file(paths[seed]) for seed in sorted(paths)}
        return {seed: log for seed, log in logs.items() if log.train_loss or log.valid_loss}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in some folders, each with a name of its own, as short as it can be."""
    places = [folder.parent if folder.name == "record.json" else folder for folder in folders]
    if len({place.resolve() for place in places}) < len(places):
        raise UserError("the same run was given twice; give each run once")
    records = [read_record(place / "record.json") for place in places]
    names = [
        [record["model"] for record in records],
        [f"{record['dataset']}/{record['model']}" for record in records],
        [str(place) for place in places],
    ]
    chosen = next(some for some in names if len(set(some)) == len(some))
    return [Run(*each) for each in zip(places, records, chosen, strict=True)]


def figures(runs: Sequence[Run]) -> list[list[str]]:
    """Return what the runs reached: a line for each quantity that any of them has, a column for each run."""
    kinds = {metric(run.record) for run in runs}
    columns = []
    for run in runs:
        record, best = run.record, best_seed(run.record)
        seconds = lookup(best, "training.seconds")
        column = {"": run.name, "data": record["dataset"], "parameters": number(record, "parameters", ",d")}
        column["seeds"] = str(len(record["seeds"]))
        for key in (key for kind in KEYS if kind in kinds for key in KEYS[kind]):
            name = f"{NAMES[key]}{', lower is better' if key in LOWER_IS_BETTER else ''}"
            column[f"valid {name}"] = spread(lookup(record, f"summary.valid.{key}"))
            column[f"test {name}"] = tested(lookup(record, f"summary.test.{key}"))
        for rate in ("sentences", "tokens"):
            column[f"speed, {rate}/s"] = spread(lookup(record, f"speed.{rate}_per_second"), ".1f")
            column[f"test set, {rate}/s"] = number(best, f"generation.{rate}_per_second", ".1f")
        column["speed, x baseline"] = number(record, "speed.ratio", ".2f")
        column["training, tokens/s"] = number(best, "training.tokens_per_second", ",.0f")
        column["training, time"] = EMPTY if seconds is None else clock(seconds)
        columns.append(column)
    lines = [[title, *(column[title] for column in columns)] for title in columns[0]]
    return [line for line in lines if any(cell != EMPTY for cell in line[1:])]


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
    text = EMPTY if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def as_text(runs: Sequence[Run]) -> str:
    """All of it as aligned text."""
    different, lines = differences(runs), ["They do not differ in any setting."]
    if different:
        lines = aligned([["different in", *(run.name for run in runs)], *different], left=1, rule=True)
    return "\n".join([*aligned(figures(runs), left=1, rule=True), "", *lines])


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run: work/<dataset>/<model>")
    parser.add_argument("--out", type=Path, metavar="FILE", help="draw the loss curves into this .png or .svg")
    arguments = parser.parse_args()
    runs = read_runs(arguments.runs)
    print(as_text(runs))
    if arguments.out is not None:
        draw_losses({run.name: run.logs() for run in runs}, arguments.out)
        print(f"\nloss curves: {arguments.out}")


if __name__ == "__main__":
    run_command(main)
