"""Measure the speed of generation of a configuration's best model, beside a baseline in the same run.

The settings are those of the CONFIG's section `speed`: beam, batch size, subset, number of runs, and the baseline,
another configuration of the same dataset. Runs of the two alternate, so that other load of the machine slows both; the
first run of each is not counted. The time is the one that fairseq-generate prints, of generation without loading.

With --prepared, trained models then also translate batches of lines of similar length, in turns and in this process;
speed.json has the speed at each length.

Without a trained baseline there is no ratio. With --untrained both architectures are timed with random weights (after
one update on little text). Such weights do not end a hypothesis, so all hypotheses have the mean length of the
references. speed.json records which weights were timed.
"""

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.files import read_json, read_lines, write_json
from data_prep.common.process import run_logged
from data_prep.dataset import load_dataset
from scripts.config import Config, config_parser, given_config
from scripts.fairseq_io.commands import generate_command, search_precision, speed_settings, train_command
from scripts.fairseq_io.devices import find_devices
from scripts.fairseq_io.generation import REFERENCE, run_generation
from scripts.fairseq_io.inputs import add_prepared, check_binarised
from scripts.fairseq_io.translator import Translator
from scripts.reproduce.run import baseline_config, model_file, seed_root, tuned_settings
from scripts.scoring.selection import over

FIGURES = ("sentences_per_second", "tokens_per_second")
LENGTHS = ((1, 16), (17, 32), (33, 64), (65, 128))  # least and greatest number of subwords of a line
LINES = 32  # lines of each length, spread over the subset
# settings that a fixed length replaces
_LENGTHS = ("max-len-a", "max-len-b", "min-len", "match-source-len")


@dataclass
class System:
    """A model whose speed is measured, with its tuned settings and the results so far."""

    config: Config
    model: Path
    chosen: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    by_length: list[dict[str, Any]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the counted runs, and for each speed its mean, standard deviation and number of runs."""
        speeds = {key: over([run[key] for run in self.runs]) for key in FIGURES}
        return {"model": self.config.name, "runs": self.runs, **speeds, "by_length": self.by_length}


def trained_system(config: Config, run: Path) -> System | None:
    """Return the best seed's model of a finished run; None if there is none."""
    selection = run / "selection" / "selection.json"
    if not selection.exists():
        return None
    root = seed_root(run, read_json(selection)["best_seed"])
    model = model_file(config, root)
    return System(config, model, tuned_settings(config, root)) if model.exists() else None


def untrained_system(config: Config, data: Path, out: Path) -> System:
    """Make a model of the configuration's architecture by one small update of fairseq-train."""
    changed = {"max-tokens": 512, "update-freq": 1, "max-update": 1, "save-interval-updates": None}
    flags = {"disable-validation": True, "no-epoch-checkpoints": None, "skip-invalid-size-inputs-valid-test": True}
    anew = {"restore-file": "none.pt"}  # do not continue from a checkpoint of another model
    small = Config(config.path, config.name, config.dataset, config.seeds, config.train | changed | flags | anew)
    devices = find_devices(1)
    run_logged(train_command(small, 1, data, out, devices), out / "train.log", lambda line: None, what="fairseq-train")
    return System(config, out / "checkpoint_last.pt", {})


def find_systems(config: Config, run: Path, data: Path, out: Path, *, untrained: bool) -> list[System]:
    """Return the model of a configuration, and its baseline if there is one; trained models unless ``untrained``."""
    baseline = baseline_config(config)
    if untrained:
        configs = [config, *([baseline] if baseline else [])]
        return [untrained_system(timed, data, out / "untrained" / timed.name) for timed in configs]
    ours = trained_system(config, run)
    theirs = trained_system(baseline, run.parent / baseline.name) if baseline else None
    if ours is None:
        raise UserError(
            f"{run} has no selected model; run python -m scripts.reproduce {shlex.join(config.arguments)} --to select, "
            "or add --untrained for the speed of random weights"
        )
    if baseline and theirs is None:
        print(f"speed: {baseline.path} has not been trained, so there is no ratio", flush=True)
    return [ours, theirs] if theirs else [ours]


def time_once(system: System, speed: dict[str, Any], data: Path, log: Path, length: int | None) -> dict[str, Any]:
    """Run fairseq-generate once with the settings of the section ``speed``."""
    settings = speed_settings(system.config, system.chosen, speed)
    if length is not None:
        settings = {key: value for key, value in settings.items() if key not in _LENGTHS}
        settings |= {"max-len-a": 0, "max-len-b": length, "min-len": length}
    command = generate_command(system.config, settings, data, system.model, speed["subset"], gpu=find_devices().gpu)
    output = run_generation(command, speed["subset"], log, label=f"{system.config.name}: ")
    return {key: output.facts[key] for key in ("seconds", *FIGURES)}


def mean_length(data: Path, system: System, subset: str, out: Path) -> int:
    """Return the mean length of the references in tokens of the dictionary."""
    settings = {"beam": 1, "max-len-a": 0, "max-len-b": 1, "batch-size": 64}  # only the references are used
    command = generate_command(system.config, settings, data, system.model, subset, gpu=find_devices().gpu)
    lines = run_generation(command, subset, out / "lengths.log").in_corpus_order()
    return max(1, round(statistics.fmean(len(line.split()) for line in lines[REFERENCE])))


def translator_of(system: System, speed: dict[str, Any], data: Path, languages: tuple[str, str]) -> Translator:
    """Load a system's model with the settings that its speed is measured at."""
    settings = speed_settings(system.config, system.chosen, speed)
    precision = search_precision(system.config, settings, gpu=find_devices().gpu).precision
    return Translator(system.model, data, languages, settings, precision=precision)


def time_by_length(systems: Sequence[System], speed: dict[str, Any], data: Path, prepared: Path) -> None:
    """Time the systems in turns on a batch of lines of each of ``LENGTHS``; lengths without lines are skipped."""
    config = systems[0].config
    source, target = load_dataset(config.dataset).languages
    lines = read_lines(prepared / f"{speed['subset']}.{source}")
    translators = [translator_of(system, speed, data, (source, target)) for system in systems]
    for least, most in LENGTHS:
        alike = [line for line in lines if least <= len(line.split()) <= most]
        batch = alike[:: max(1, len(alike) // LINES)][:LINES]
        if not batch:
            continue
        times: list[list[float]] = [[] for _ in systems]
        for number in range(speed["runs"] + 1):
            for translator, seconds in zip(translators, times, strict=True):
                start = perf_counter()
                translator.translate(batch)
                seconds += [perf_counter() - start] if number else []
        units = statistics.fmean(len(line.split()) for line in batch)
        for system, seconds in zip(systems, times, strict=True):
            speeds = over([len(batch) / duration for duration in seconds])
            print(f"{system.config.name}, {least} to {most} subwords: {speeds['mean']:.1f} sentences/s", flush=True)
            point = {"from": least, "to": most, "units": units, "lines": len(batch), FIGURES[0]: speeds}
            system.by_length.append(point)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__, data=True, out="the folder for speed.json")
    parser.add_argument(
        "--run", type=Path, required=True, metavar="DIR", help="work/<dataset>/<model> of a finished run"
    )
    parser.add_argument(
        "--untrained", action="store_true", help="time random weights, even if there is a trained model"
    )
    add_prepared(parser)
    arguments = parser.parse_args(argv)
    config, out, data = given_config(arguments), arguments.out, arguments.data
    speed = config.speed
    if not speed:
        raise UserError(f"{config.path} has no section `speed`; add one, or skip the stage")
    check_binarised(data)
    systems = find_systems(config, arguments.run, data, out, untrained=arguments.untrained)
    ours = systems[0]
    length = mean_length(data, ours, speed["subset"], out) if arguments.untrained else None
    for number in range(speed["runs"] + 1):
        for system in systems:
            run = time_once(system, speed, data, out / f"{system.config.name}.run{number}.log", length)
            if number:  # the first warms up files, caches and compiled operators
                system.runs.append(run)
                print(f"{system.config.name}: {run['sentences_per_second']:.1f} sentences/s", flush=True)
    if arguments.prepared and not arguments.untrained:
        time_by_length(systems, speed, data, arguments.prepared)
    result, baseline = ours.summary(), systems[1].summary() if len(systems) > 1 else None
    key = FIGURES[0]
    ratio = result[key]["mean"] / baseline[key]["mean"] if baseline else None
    settings = {**{name: speed[name] for name in ("beam", "batch-size", "subset", "runs")}, "fixed_length": length}
    settings["precision"] = search_precision(config, config.generate, gpu=find_devices().gpu).precision
    result |= {"trained": not arguments.untrained, "baseline": baseline, "ratio": ratio, "settings": settings}
    write_json(out / "speed.json", result)
    beside = f", {ratio:.2f} times {systems[1].config.name}" if ratio else ""
    print(f"{result[key]['mean']:.1f} sentences/s, {result[FIGURES[1]]['mean']:.0f} tokens/s{beside}")


if __name__ == "__main__":
    run_command(main)
