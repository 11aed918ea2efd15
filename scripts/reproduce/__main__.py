"""Run all stages of one configuration, from raw text to a row of the results table.

  download, prepare, binarise    work/<dataset>/{raw,prepared,binarised}, shared by all models of a dataset
  train, average or tune, generate, score    work/<dataset>/<model>/seed<N>/..., for each seed of the configuration
  select, speed    the best seed by validation; its speed, where the configuration has a section `speed`
  table    prints the row from work/<dataset>/<model>/record.json

Before the first stage that runs, scripts.check goes through the whole configuration; training does so itself.
`tune` takes the place of `average` where there is something to tune or a seed to choose; a language model has no stage
`generate`. A stage whose settings and inputs have not changed since it was completed is skipped; the same command again
goes on where it was interrupted. Seeds may be run by several such commands at a time (--seeds).

Several machines (those of a SLURM job: scripts/slurm.sh) train together with --nodes and --rendezvous; --launch starts
the training on all of them:
  python -m scripts.reproduce CONFIG --nodes 4 --rendezvous $HOSTNAME:29500 --launch "srun --ntasks-per-node=1"
"""

import functools
import shlex
from pathlib import Path
from typing import Any

from data_prep.dataset import load_dataset
from data_prep.stages import run_data_stages
from scripts.common import CHECKOUT, ownership
from scripts.common.command import positive, run_command
from scripts.common.errors import UserError
from scripts.common.files import read_json, write_json
from scripts.common.lock import folder_lock
from scripts.common.process import child, python_module
from scripts.fairseq_io.devices import find_devices, reserve_gpus
from scripts.fairseq_io.inputs import check_first
from scripts.pipeline.config import config_parser, given_config
from scripts.pipeline.schema import PRECISIONS
from scripts.pipeline.stamp import fingerprint_files
from scripts.reproduce import show
from scripts.reproduce.layout import DATA_STAGES, MODEL_STAGES, NAMES, SEED_STAGES, Launch, Run, build_run, seed_root
from scripts.reproduce.record import MADE_WITH, build_record, seed_facts


def choose_stages(first: str, last: str) -> list[str]:
    """The names of the stages from ``first`` to ``last``."""
    for name in (first, last):
        if name not in NAMES:
            raise UserError(f"unknown stage `{name}`; the stages are {', '.join(NAMES)}")
    start, end = NAMES.index(first), NAMES.index(last)
    if start > end:
        raise UserError(f"--from {first} comes after --to {last}; the order is {', '.join(NAMES)}")
    return list(NAMES[start : end + 1])


def check_run(run: Run, names: list[str], seeds: list[int], flags: list[str]) -> None:
    """Check the whole configuration before any stage runs, if one has to; training does so itself, with its data.

    Raises:
        UserError: something in it cannot be.
    """
    to_do = next((run.stages[key].name for key in run.chosen(names, seeds) if run.stale_reason(key)), None)
    if to_do not in (None, "train"):
        print("== check: every setting of the configuration, and the model built without weights", flush=True)
        check_first(run.config, *flags)


def run_stages(run: Run, names: list[str], seeds: list[int]) -> None:
    """Run the chosen stages under the locks of their folders, keep the record, and print the row at the end."""
    ownership.check_writable(run.record)
    run.check_places(run.chosen(names, seeds))
    if data := run.chosen(set(names) & set(DATA_STAGES)):
        run_data_stages(run, run.dataset_root, data)
    if set(names) <= set(DATA_STAGES):
        return
    with folder_lock(run.dataset_root, shared=True):
        warn_about_older(run, names, seeds)
        errors = [error for seed in seeds if (error := run_seed(run, names, seeds, seed))]
        if errors:
            raise UserError("\n".join(map(str, errors)))
        with folder_lock(run.model_root):
            finish(run, names, seeds)


def run_seed(run: Run, names: list[str], seeds: list[int], seed: int) -> UserError | None:
    """Run the chosen stages of a seed. If its training diverges, return the error: other seeds may not.

    Raises:
        UserError: a stage failed in any other way.
    """
    failed = None
    with folder_lock(seed_root(run.model_root, seed)):
        try:
            run.run(run.chosen(set(names) & set(SEED_STAGES), [seed]))
        except UserError as error:
            failed = error
        finally:  # what was done counts, whatever failed after it
            record = write_record(run, seeds, names)
    training = record["seeds"].get(str(seed), {}).get("training") or {}
    if failed and "diverged" not in training:
        raise failed
    return failed


def finish(run: Run, names: list[str], seeds: list[int]) -> None:
    """The stages after all seeds: they wait until every seed has its scores."""
    keys = run.chosen(set(names) & set(MODEL_STAGES))
    others = run.seeds_to_do(set(run.config.seeds) - set(seeds))
    if keys and others:
        print(f"note: {' and '.join(keys)} must wait for the seeds {', '.join(map(str, others))}", flush=True)
        keys = []
    if run.run(keys) or not run.record.exists():
        write_record(run, seeds, names)
    if names[-1] != "table":
        return
    done = run.completed()
    if not any(run.stages[key].name in ("score", "speed") for key in done):
        raise UserError(f"nothing to show: {run.model_root} has no complete scores; run --to score first")
    print("all stages are done\n" if not others else "the seeds asked for are done\n", flush=True)
    with child([*python_module("scripts.table"), str(run.record)]) as process:
        if process.wait() != 0:
            raise UserError("the stage table failed; it has said why above")


def warn_about_older(run: Run, names: list[str], seeds: list[int]) -> None:
    """With --from, the stages left out are taken as they are; say so if the configuration has moved on since."""
    done = run.completed()
    first = min(NAMES.index(name) for name in names)
    for key, stage in run.stages.items():
        left_out = NAMES.index(stage.name) < first and (stage.seed is None or stage.seed in seeds)
        if left_out and key in done and (reason := run.stale_reason(key)):
            print(f"note: the stage {stage.title} is left out and used as it is, though {reason}", flush=True)


def write_record(run: Run, seeds: list[int], names: list[str]) -> dict[str, Any]:
    """Write and return the run record: what the completed stages left behind, as far as the configuration is theirs.

    Stages before the first of ``names`` are taken as they are; seeds other than these only where they are done whole.
    """
    old = run.seeds_to_do(set(run.config.seeds) - set(seeds))
    outdated = run.outdated(names)
    done = {
        key: stamp for key, stamp in run.completed().items() if key not in outdated and run.stages[key].seed not in old
    }
    stages = {
        key: {"seconds": stamp.seconds, "finished": stamp.finished, "git": stamp.git, "fingerprint": stamp.fingerprint}
        for key, stamp in done.items()
    }
    facts = {}
    for seed in run.config.seeds:
        of_seed = {run.stages[key].name for key in done if run.stages[key].seed == seed}
        found = seed_facts(seed_root(run.model_root, seed), of_seed, run.config.training(seed))
        if run.chosen(SEED_STAGES, [seed]) and any(found.values()):
            facts[seed] = found
    speed = read_json(run.stages["speed"].folder / "speed.json") if "speed" in done else None
    record = build_record(run.config, facts, speed, stages)
    before = read_json(run.record) if run.record.exists() else {}
    if all(before.get(key) == record[key] for key in ("stages", "seeds")):  # nothing has run since
        record |= {key: before[key] for key in MADE_WITH}
    write_json(run.record, record)
    return record


def main() -> None:
    parser = config_parser(__doc__)
    parser.add_argument("--from", dest="first", metavar="STAGE", help="begin with this stage (default: download)")
    parser.add_argument(
        "--to", dest="last", metavar="STAGE", default="table", help="end with this stage (default: table)"
    )
    parser.add_argument("--seeds", metavar="N,N", help="these seeds of the configuration alone (default: all)")
    parser.add_argument("--work", type=Path, metavar="DIR", default=CHECKOUT / "work", help="where all results go")
    parser.add_argument("--raw", type=Path, metavar="DIR", help="take the raw text from here instead of downloading it")
    parser.add_argument(
        "--untrained", action="store_true", help="train nothing: measure the speed of random weights (Tables 3, 7)"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--dry-run", action="store_true", help="show what is done, and the commands of what is to do")
    shown.add_argument("--print", action="store_true", help="show the whole configuration and all commands")
    machines = parser.add_argument_group("training")
    machines.add_argument("--devices", type=positive, metavar="N", help="N GPUs (default: all), or N CPU processes")
    machines.add_argument("--nodes", type=positive, metavar="N", help="N machines, each with as many devices")
    machines.add_argument("--rendezvous", metavar="HOST:PORT", help="where they meet: a free port of the first")
    machines.add_argument("--precision", choices=PRECISIONS, help="train in this (default: the CONFIG's)")
    machines.add_argument("--launch", metavar="COMMAND", default="", help="starts the training on each of the machines")
    arguments = parser.parse_args()
    names = choose_stages(arguments.first or NAMES[0], arguments.last)
    if arguments.raw and "download" not in names:
        raise UserError(
            f"--raw is for the stage download, which --from {arguments.first} leaves out; give one of the two"
        )
    if arguments.dataset and "/" in arguments.dataset:
        raise UserError(f"--dataset is {arguments.dataset}, expected a name, which its folder in work/ has too")
    config = given_config(arguments, precision=arguments.precision)
    seeds = show.chosen_seeds(config, arguments.seeds)

    @functools.cache
    def given() -> str | None:
        return fingerprint_files(arguments.raw, dataset.files) if arguments.raw else None

    passed = {name: getattr(arguments, name) for name in ("devices", "nodes", "rendezvous", "precision")}
    flags = [f"--{name}={value}" for name, value in passed.items() if value is not None]
    try:
        prefix = shlex.split(arguments.launch)
    except ValueError as error:
        raise UserError(
            f"--launch is {arguments.launch}, expected a command as a shell takes it ({error}); close what is open"
        ) from error
    several = {"nodes": arguments.nodes or 1, "rendezvous": arguments.rendezvous}
    launch = Launch(tuple(prefix), tuple(flags), functools.partial(find_devices, arguments.devices, **several))
    dataset = load_dataset(config.dataset)
    run = build_run(config, dataset, arguments.work, arguments.raw, given, launch, untrained=arguments.untrained)
    if arguments.print:
        print(show.whole(run, seeds, set(names)))
    elif arguments.dry_run:
        print(show.to_do(run, seeds, set(names)))
    elif not run.chosen(names, seeds) and names != ["table"]:
        there = ", ".join(dict.fromkeys(stage.name for stage in run.stages.values()))
        raise UserError(f"{config.path} has no stage {', '.join(names)}; its stages are {there}, table")
    else:
        with reserve_gpus(None if arguments.launch else arguments.devices):
            here = [] if arguments.launch else [flag for flag in flags if not flag.startswith("--rendezvous")]
            check_run(run, names, seeds, here)
            run_stages(run, names, seeds)


if __name__ == "__main__":
    run_command(main)
