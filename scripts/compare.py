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
from scripts.reproduce.record import lookup, read_record
from scripts.scoring.score_names import KEYS, LOWER_IS_BETTER, NAMES
from scripts.tables.records import EMPTY, best_seed, metric, number, spread, tested

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
    lines = [["", *(run.name for run in runs)]]

    def line(title: str, cells: Sequence[str]) -> None:
        if any(cell != EMPTY for cell in cells):
            lines.append([title, *cells])

    records = [run.record for run in runs]
    line("data", [record["dataset"] for record in records])
    line("parameters", [number(record, "parameters", ",d") for record in records])
    line("seeds", [str(len(record["seeds"])) for record in records])
    for key in dict.fromkeys(key for kind in KEYS for key in KEYS[kind] if any(metric(r) == kind for r in records)):
        note = ", lower is better" if key in LOWER_IS_BETTER else ""
        line(f"valid {NAMES[key]}{note}", [spread(lookup(record, f"summary.valid.{key}")) for record in records])
        line(f"test {NAMES[key]}{note}", [tested(lookup(record, f"summary.test.{key}")) for record in records])
    for rate in ("sentences", "tokens"):
        path = f"{rate}_per_second"
        line(f"speed, {rate}/s", [spread(lookup(record, f"speed.{path}"), ".1f") for record in records])
        line(f"test set, {rate}/s", [number(best_seed(record), f"generation.{path}", ".1f") for record in records])
    line("speed, x baseline", [number(record, "speed.ratio", ".2f") for record in records])
    line("training, tokens/s", [number(best_seed(record), "training.tokens_per_second", ",.0f") for record in records])
    seconds = [lookup(best_seed(record), "training.seconds") for record in records]
    line("training, time", [EMPTY if value is None else clock(value) for value in seconds])
    return lines


def differences(runs: Sequence[Run]) -> list[list[str]]:
    """The settings and circumstances in which the runs differ, a column for each run; a dash where one has none."""
    settings = [
        {
            **dict(_flat("", run.record["config"])),
            **dict(_flat("tuned", lookup(best_seed(run.record), "tuned"))),
            **{key: value for part in _CIRCUMSTANCES for key, value in _flat(part, lookup(run.record, part))},
        }
        for run in runs
    ]
    names = dict.fromkeys(name for each in settings for name in each)
    rows = [[name, *(_text(each.get(name)) for each in settings)] for name in names]
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
    lines = aligned(figures(runs), left=1, rule=True)
    different = differences(runs)
    if not different:
        return "\n".join([*lines, "", "They do not differ in any setting."])
    return "\n".join(
        [*lines, "", *aligned([["different in", *(run.name for run in runs)], *different], left=1, rule=True)]
    )


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
