"""Run all stages of one configuration, from raw text to a row of the results table.

  download, prepare, binarise    work/<dataset>/{raw,prepared,binarised}, shared by all models of a dataset
  train, average or tune, generate, score    work/<dataset>/<model>/seed<N>/..., for each seed of the configuration
  select, speed    the best seed by validation; its speed, where the configuration has a section `speed`
  table    prints the row from work/<dataset>/<model>/record.json

Before the first stage that has to run scripts/check.py goes through the whole configuration; training does so itself.
`tune` takes the place of `average` where there is something to tune or a seed to choose; a language model has no stage
`generate`. A stage whose settings and inputs have not changed since it was completed is skipped; the same command again
goes on where it was interrupted. Seeds may be run by several such commands at a time (--seeds).

Several machines (those of a SLURM job: scripts/slurm.sh) train together with --nodes and --rendezvous; --launch starts
the training on all of them:
  reproduce.py CONFIG --nodes 4 --rendezvous $HOSTNAME:29500 --launch "srun --ntasks-per-node=1"
"""

import argparse
import functools
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import ownership, show
from scripts.common.config import load_config
from scripts.common.devices import check_count, claimed
from scripts.common.errors import INTERRUPTED, UserError, run_command
from scripts.common.fairseq import check_first
from scripts.common.files import read_json, write_json
from scripts.common.layout import Launch, build_run, seed_root
from scripts.common.lock import folder_lock
from scripts.common.process import child, interruptible
from scripts.common.record import build_record, git_state, read_dataset, seed_facts
from scripts.common.stages import DATA_STAGES, MODEL_STAGES, NAMES, SEED_STAGES, Run, completed, seeds_to_do
from scripts.common.stamp import NAME as STAMP
from scripts.common.stamp import Stamp, fingerprint_files, new_id, remove_stamp, sizes, write_stamp
from scripts.common.terminal import clock

CHECKOUT = Path(__file__).resolve().parents[1]


def choose_stages(first: str, last: str) -> list[str]:
    """The names of the stages from ``first`` to ``last``.

    Raises:
        UserError: a name is unknown, or they stand in the wrong order.
    """
    for name in (first, last):
        if name not in NAMES:
            raise UserError(f"unknown stage `{name}`; the stages are {', '.join(NAMES)}")
    start, end = NAMES.index(first), NAMES.index(last)
    if start > end:
        raise UserError(f"--from {first} comes after --to {last}; the order is {', '.join(NAMES)}")
    return list(NAMES[start : end + 1])


def run_stage(run: Run, key: str) -> None:
    """Run one stage's commands and stamp its folder.

    Raises:
        UserError: a command failed; it has said why itself.
    """
    stage = run.stages[key]
    made_from = run.fingerprint(key)
    given = run.given() if not stage.before else None
    remove_stamp(stage.folder)
    git = git_state()
    start = time.monotonic()
    for command in stage.commands:
        with child([*stage.prefix, sys.executable, "-P", *command]) as process:
            status = process.wait()
        if status != 0:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            refused = "" if status in (INTERRUPTED, *range(-64, 0)) else "once what is said above is mended, "
            raise UserError(
                f"the stage {stage.title} {how}; what was complete before is kept: {refused}the same command goes on "
                "from there"
            )
    files = sizes(stage.folder)
    if stage.key_files is not None:
        files = {name: files[name] for name in stage.key_files}
    seconds = round(time.monotonic() - start, 1)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    write_stamp(stage.folder, Stamp(new_id(), made_from, given, seconds, finished, git, files))
    print(f"== {stage.title}: done in {clock(seconds)}", flush=True)


def run_if_needed(run: Run, keys: list[str]) -> bool:
    """Run those of the stages that are not done; returns whether there were any."""
    ran = False
    for key in keys:
        reason, title = run.why_not_done(key), run.stages[key].title
        if reason is None:
            print(f"== {title}: nothing has changed, skipped", flush=True)
        else:
            run.fingerprint(key)  # refuses if a stage before has not been completed
            print(f"== {title}: {reason}", flush=True)
            run_stage(run, key)
            ran = True
    return ran


def check_places(run: Run, names: list[str], seeds: list[int]) -> None:
    """Refuse files that are in the way of a stage, before the first stage runs.

    Raises:
        UserError: see ownership.py.
    """
    ownership.check_writable(run.record)
    for key in (*run.chosen(names), *run.chosen(names, seeds)):
        folder = run.stages[key].folder
        if run.stages[key].name in ("prepare", "binarise") and run.why_not_done(key):
            ownership.check_replaceable(folder)
        ownership.check_writable(folder / STAMP)


def check_run(run: Run, names: list[str], seeds: list[int], flags: list[str]) -> None:
    """Check the whole configuration before any stage runs, if one has to; training does so itself, with its data.

    Raises:
        UserError: something in it cannot be.
    """
    stages = [stage for stage in run.stages.values() if stage.name in names and stage.seed in (None, *seeds)]
    to_do = next((stage.name for stage in stages if run.why_not_done(stage.key)), None)
    if to_do not in (None, "train"):
        print("== check: every setting of the configuration, and the model built without weights", flush=True)
        check_first(run.config.path, *flags)


def run_stages(run: Run, names: list[str], seeds: list[int]) -> None:
    """Run the chosen stages under the locks of their folders, keep the record, and print the row at the end."""
    check_places(run, names, seeds)
    data = run.chosen(set(names) & set(DATA_STAGES))
    if data:
        with folder_lock(run.dataset_root, shared=True):
            pending = any(run.why_not_done(key) for key in data)
        with folder_lock(run.dataset_root, shared=not pending):
            run_if_needed(run, data)
    if set(names) <= set(DATA_STAGES):
        return
    with folder_lock(run.dataset_root, shared=True):
        warn_about_older(run, names, seeds)
        for seed in seeds:
            with folder_lock(seed_root(run.model_root, seed)):
                try:
                    run_if_needed(run, run.chosen(set(names) & set(SEED_STAGES), [seed]))
                finally:  # what was done counts, whatever failed after it
                    write_record(run, seeds)
        with folder_lock(run.model_root):
            finish(run, names, seeds)


def finish(run: Run, names: list[str], seeds: list[int]) -> None:
    """The stages after all seeds: they wait until every seed has its scores."""
    keys = run.chosen(set(names) & set(MODEL_STAGES))
    others = seeds_to_do(run, set(run.config.seeds) - set(seeds))
    if keys and others:
        print(f"note: {' and '.join(keys)} must wait for the seeds {', '.join(map(str, others))}", flush=True)
        keys = []
    if run_if_needed(run, keys) or not run.record.exists():
        write_record(run, seeds)
    if names[-1] != "table":
        return
    done = completed(run)
    if not any(run.stages[key].name in ("score", "speed") for key in done):
        raise UserError(f"nothing to show: {run.model_root} has no complete scores; run --to score first")
    print("all stages are done\n" if not others else "the seeds asked for are done\n", flush=True)
    table = CHECKOUT / "scripts" / "table.py"
    with child([sys.executable, "-P", str(table), str(run.record)]) as process:
        if process.wait() != 0:
            raise UserError("the stage table failed; it has said why above")


def warn_about_older(run: Run, names: list[str], seeds: list[int]) -> None:
    """With --from, the stages left out are taken as they are; say so if the configuration has moved on since."""
    done = completed(run)
    first = min(NAMES.index(name) for name in names)
    for key, stage in run.stages.items():
        left_out = NAMES.index(stage.name) < first and (stage.seed is None or stage.seed in seeds)
        if left_out and key in done and (reason := run.why_not_done(key)):
            print(f"note: the stage {stage.title} is left out and used as it is, though {reason}", flush=True)


def write_record(run: Run, seeds: list[int]) -> None:
    """Write the run record from what the completed stages left behind; of seeds other than these, if nothing in their
    settings has changed since.
    """
    old = seeds_to_do(run, set(run.config.seeds) - set(seeds))
    done = {key: stamp for key, stamp in completed(run).items() if run.stages[key].seed not in old}
    stages = {
        key: {"seconds": stamp.seconds, "finished": stamp.finished, "git": stamp.git, "fingerprint": stamp.fingerprint}
        for key, stamp in done.items()
    }
    facts = {}
    for seed in run.config.seeds:
        names = {run.stages[key].name for key in done if run.stages[key].seed == seed}
        if names or (seed not in old and run.chosen(SEED_STAGES, [seed])):
            facts[seed] = seed_facts(seed_root(run.model_root, seed), names)
    speed = read_json(run.stages["speed"].folder / "speed.json") if "speed" in done else None
    write_json(run.record, build_record(run.config, facts, speed, stages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument("--from", dest="first", metavar="STAGE", help="begin with this stage (default: download)")
    parser.add_argument(
        "--to", dest="last", metavar="STAGE", default="table", help="end with this stage (default: table)"
    )
    parser.add_argument("--seeds", metavar="N,N", help="these seeds of the configuration alone (default: all)")
    parser.add_argument("--work", type=Path, metavar="DIR", default=CHECKOUT / "work", help="where all results go")
    parser.add_argument("--raw", type=Path, metavar="DIR", help="take the raw text from here instead of downloading it")
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="train nothing: measure the speed of random weights (Tables 3, 7)",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--list", action="store_true", help="show what is done and what is to do, and run nothing")
    shown.add_argument("--dry-run", action="store_true", help="show the commands of what is to do, and run nothing")
    shown.add_argument("--print", action="store_true", help="show the whole configuration and all commands")
    machines = parser.add_argument_group("training")
    machines.add_argument("--devices", type=int, metavar="N", help="N GPUs (default: all), or N processes on the CPU")
    machines.add_argument("--nodes", type=int, metavar="N", help="N machines, each with as many devices")
    machines.add_argument("--rendezvous", metavar="HOST:PORT", help="where they meet: a free port of the first")
    machines.add_argument("--launch", metavar="COMMAND", default="", help="starts the training on each of the machines")
    arguments = parser.parse_args()
    interruptible()
    check_count(arguments.devices)
    check_count(arguments.nodes, "--nodes")
    names = choose_stages(arguments.first or NAMES[0], arguments.last)
    if arguments.raw and "download" not in names:
        raise UserError(
            f"--raw is for the stage download, which --from {arguments.first} leaves out; give one of the two"
        )
    config = load_config(arguments.config)
    seeds = show.chosen_seeds(config, arguments.seeds)

    @functools.cache
    def given() -> str | None:
        return fingerprint_files(arguments.raw) if arguments.raw else None

    passed = {name: getattr(arguments, name) for name in ("devices", "nodes", "rendezvous")}
    flags = [f"--{name}={value}" for name, value in passed.items() if value is not None]
    try:
        prefix = shlex.split(arguments.launch)
    except ValueError as error:
        raise UserError(
            f"--launch is {arguments.launch}, expected a command as a shell takes it ({error}); close what is open"
        ) from error
    launch = Launch(tuple(prefix), tuple(flags), **passed)
    dataset = read_dataset(config.dataset)
    run = build_run(
        config, dataset, arguments.work, CHECKOUT, arguments.raw, given, launch, untrained=arguments.untrained
    )
    if arguments.list:
        print(show.list_stages(run, seeds))
    elif arguments.print:
        print(show.whole(run, seeds, set(names)))
    elif arguments.dry_run:
        print(show.to_do(run, seeds, set(names)))
    elif not run.chosen(names) and not run.chosen(names, seeds) and names != ["table"]:
        there = ", ".join(dict.fromkeys(stage.name for stage in run.stages.values()))
        raise UserError(f"{config.path} has no stage {', '.join(names)}; its stages are {there}, table")
    else:
        with claimed(None if arguments.launch else arguments.devices):
            here = [] if arguments.launch else [flag for flag in flags if not flag.startswith("--rendezvous")]
            check_run(run, names, seeds, here)
            run_stages(run, names, seeds)


if __name__ == "__main__":
    run_command(main)
