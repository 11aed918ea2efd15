"""Run all stages of one configuration, from raw text to a row of the results table.

  download, prepare, binarise    work/<dataset>/{raw,prepared,binarised}, shared by all models of a dataset
  train, average, generate, score    work/<dataset>/<model>/{checkpoints,averaged,hypotheses,scores}
  table    prints the row from work/<dataset>/<model>/record.json

A stage whose settings and inputs have not changed since it was completed is skipped; the same command again goes on
where it was interrupted. Without an `average:` section the best checkpoint is used as it is.
"""

import argparse
import functools
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.config import load_config
from scripts.common.errors import UserError, run_command
from scripts.common.files import write_json
from scripts.common.lock import folder_lock
from scripts.common.process import child, interruptible
from scripts.common.record import build_record, git_state, read_dataset
from scripts.common.stages import DATA_STAGES, NAMES, Run, build_run, completed
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


def run_stage(run: Run, name: str) -> None:
    """Run one stage as a command and stamp its folder.

    Raises:
        UserError: the command failed; it has said why itself.
    """
    stage = run.stages[name]
    made_from = run.fingerprint(name)
    given = run.given() if run.before(name) is None else None
    remove_stamp(stage.folder)
    git = git_state()
    start = time.monotonic()
    with child([sys.executable, "-P", *stage.command]) as process:
        status = process.wait()
    if status != 0:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise UserError(
            f"the stage {name} {how}; what was complete before is kept, the same command goes on from there"
        )
    files = sizes(stage.folder)
    if stage.key_files is not None:
        files = {key: files[key] for key in stage.key_files}
    seconds = round(time.monotonic() - start, 1)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    write_stamp(stage.folder, Stamp(new_id(), made_from, given, seconds, finished, git, files))
    print(f"== {name}: done in {clock(seconds)}", flush=True)


def run_if_needed(run: Run, names: list[str]) -> bool:
    """Run those of the stages that are not done; returns whether there were any."""
    ran = False
    for name in names:
        reason = run.why_not_done(name)
        if reason is None:
            print(f"== {name}: nothing has changed, skipped", flush=True)
        else:
            run.fingerprint(name)  # refuses if the stage before has not been completed
            print(f"== {name}: {reason}", flush=True)
            run_stage(run, name)
            ran = True
    return ran


def run_stages(run: Run, names: list[str]) -> None:
    """Run the chosen stages under the locks of their folders, keep the record, and print the row at the end."""
    data = [name for name in names if name in DATA_STAGES]
    rest = [name for name in names if name in run.stages and name not in DATA_STAGES]
    if data:
        with folder_lock(run.dataset_root, shared=True):
            pending = any(run.why_not_done(name) for name in data)
        with folder_lock(run.dataset_root, shared=not pending):
            run_if_needed(run, data)
    if names == data:
        return
    with folder_lock(run.dataset_root, shared=True), folder_lock(run.model_root):
        warn_about_older(run, names)
        ran = run_if_needed(run, rest)
        if ran or not run.record.exists():
            write_record(run)
        if names[-1] == "table":
            if "score" not in completed(run):
                raise UserError(
                    f"nothing to show: {run.stages['score'].folder} is missing or incomplete; run --to score first"
                )
            print("all stages are done\n", flush=True)
            table = CHECKOUT / "scripts" / "table.py"
            with child([sys.executable, "-P", str(table), str(run.record)]) as process:
                if process.wait() != 0:
                    raise UserError("the stage table failed; it has said why above")


def warn_about_older(run: Run, names: list[str]) -> None:
    """With --from, the stages left out are taken as they are; say so if the configuration has moved on since."""
    done = completed(run)
    for name in run.stages:
        if name in names:
            break
        if name in done and (reason := run.why_not_done(name)):
            print(f"note: the stage {name} is left out and used as it is, though {reason}", flush=True)


def write_record(run: Run) -> None:
    """Write the run record from what the completed stages left behind."""
    stages = {
        name: {"seconds": stamp.seconds, "finished": stamp.finished, "git": stamp.git, "fingerprint": stamp.fingerprint}
        for name, stamp in completed(run).items()
    }
    write_json(run.record, build_record(run.config, stages, {name: stage.folder for name, stage in run.stages.items()}))


def list_stages(run: Run) -> str:
    """A line for each stage: its state and its folder."""
    lines = []
    changed = False
    for name, stage in run.stages.items():
        reason = run.why_not_done(name) or ("a stage before it will run" if changed else None)
        changed = changed or reason is not None
        lines.append(f"{name:9} {'to do: ' + reason if reason else 'done':44} {stage.folder}")
    return "\n".join([*lines, f"{'table':9} {'prints the row':44} {run.record}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file in configs/")
    parser.add_argument("--from", dest="first", metavar="STAGE", help="begin with this stage (default: download)")
    parser.add_argument(
        "--to", dest="last", metavar="STAGE", default="table", help="end with this stage (default: table)"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", default=CHECKOUT / "work", help="where all results go")
    parser.add_argument("--raw", type=Path, metavar="DIR", help="take the raw text from here instead of downloading it")
    parser.add_argument("--list", action="store_true", help="show what is done and what is to do, and run nothing")
    arguments = parser.parse_args()
    interruptible()
    names = choose_stages(arguments.first or NAMES[0], arguments.last)
    if arguments.raw and "download" not in names:
        raise UserError(
            f"--raw is for the stage download, which --from {arguments.first} leaves out; give one of the two"
        )
    config = load_config(arguments.config)

    @functools.cache
    def given() -> str | None:
        return fingerprint_files(arguments.raw) if arguments.raw else None

    run = build_run(config, read_dataset(config.dataset), arguments.work, CHECKOUT, arguments.raw, given)
    if arguments.list:
        print(list_stages(run))
    elif "average" in names and "average" not in run.stages and len(names) == 1:
        raise UserError(
            f"{config.path} has no `average:` section, so there is no stage average; add one or leave it out"
        )
    else:
        run_stages(run, names)


if __name__ == "__main__":
    run_command(main)
