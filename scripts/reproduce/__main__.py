"""Run all stages of one configuration, from raw text to a row of the results table.

  download, prepare, binarise    work/<dataset>/{raw,prepared,binarised}, shared by all models of a dataset
  train, average or tune, generate, score    work/<dataset>/<model>/seed<N>/..., for each seed of the configuration
  select, speed    the best seed by validation; its speed, where the configuration has a section `speed`
  table    prints the row from work/<dataset>/<model>/record.json, then some lines of the best seed's test set

Before the first stage that runs, scripts.check checks the whole configuration; the stage train does so itself.
`tune` takes the place of `average` where there is something to tune or a seed to choose; a language model has no stage
`generate`. A stage whose settings and inputs have not changed since it was completed is skipped; the same command again
goes on where it was interrupted. Seeds may be run by several such commands at a time (--seeds).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.common import CHECKOUT
from data_prep.common.command import positive, run_command
from data_prep.common.errors import UserError
from data_prep.common.outputs import check_writable, lock
from data_prep.stages import DATASET, run_data_stages
from scripts.check import check_first
from scripts.config import PRECISIONS, Config, config_parser, given_config
from scripts.reproduce.outcome import outcome
from scripts.reproduce.run import DATA_STAGES, MODEL_STAGES, NAMES, SEED_STAGES, Run, build_run, seed_root
from scripts.tables.records import as_text, read_record


def choose_seeds(config: Config, given: str | None) -> list[int]:
    """The seeds that ``--seeds`` names, in the configuration's order; all of them where it is not given."""
    known = {str(seed): seed for seed in config.seeds}
    wanted = given.split(",") if given is not None else [*known]
    if odd := [seed for seed in wanted if seed not in known]:
        raise UserError(f"{config.path} has no seed {', '.join(odd)}; its seeds are {', '.join(known)}")
    return [seed for name, seed in known.items() if name in wanted]


def run_stages(run: Run, names: list[str], seeds: list[int]) -> None:
    """Run the chosen stages under the locks of their folders, keep the record, and print the row at the end.

    scripts.check goes first if any stage has to run; training does so itself.
    """
    chosen, first = run.chosen(names, seeds), names[0]
    to_do = next((run.stages[key].name for key in chosen if run.stale_reason(key)), None)
    if to_do not in (None, "train"):
        print("== check: the settings of the configuration", flush=True)
        check_first(run.config)
    check_writable(run.record)
    run.check_places(chosen)
    if data := run.chosen(set(names) & set(DATA_STAGES)):
        run_data_stages(run, run.dataset_root, data)
    if set(names) <= set(DATA_STAGES):
        return
    with lock(run.dataset_root / DATASET, shared=True):
        for key in run.chosen(NAMES[: NAMES.index(first)], seeds):
            if key in run.completed() and (reason := run.stale_reason(key)):
                print(f"note: the stage {run.stages[key].title} is left out and used as it is, though {reason}")
        errors = [error for seed in seeds if (error := run_seed(run, names, seed))]
        if errors:
            raise UserError("\n".join(map(str, errors)))
        with lock(run.model_root):
            finish(run, names, seeds)


def run_seed(run: Run, names: list[str], seed: int) -> UserError | None:
    """Run the chosen stages of a seed. If its training diverges, return the error: other seeds may not.

    Raises:
        UserError: a stage failed in any other way.
    """
    failed = None
    with lock(seed_root(run.model_root, seed)):
        try:
            run.run(run.chosen(set(names) & set(SEED_STAGES), [seed]))
        except UserError as error:
            failed = error
        finally:  # what was done counts, whatever failed after it
            record = run.write_record(names[0])
    training = record["seeds"].get(str(seed), {}).get("training") or {}
    if failed and "diverged" not in training:
        raise failed
    return failed


def finish(run: Run, names: list[str], seeds: list[int]) -> None:
    """Run the stages after all seeds, for which every seed must have its scores; then show the row and the outcome."""
    keys, of_seeds = run.chosen(set(names) & set(MODEL_STAGES)), run.chosen(SEED_STAGES, {*run.config.seeds} - {*seeds})
    others = list(dict.fromkeys(str(run.stages[key].seed) for key in of_seeds if run.stale_reason(key)))
    if keys and others:
        print(f"note: {' and '.join(keys)} must wait for the seeds {', '.join(others)}", flush=True)
        keys = []
    run.run(keys)
    record = run.write_record(names[0])
    if names[-1] == "table":
        if record["best_seed"] is None and record["speed"] is None:
            raise UserError(f"nothing to show: {run.model_root} has no complete scores; run --to score first")
        print("all stages are done\n" if not others else "the seeds asked for are done\n", flush=True)
        print(as_text([read_record(run.record)]))
    if shown := outcome(run):
        print(f"\n{shown}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__)
    add = parser.add_argument
    stage: dict[str, Any] = {"metavar": "STAGE", "choices": NAMES}
    add("--from", dest="first", **stage, default="download", help="begin with this stage (default: download)")
    add("--to", dest="last", **stage, default="table", help="end with this stage (default: table)")
    add("--seeds", metavar="N,N", help="these seeds of the configuration alone (default: all)")
    add("--work", type=Path, metavar="DIR", default=CHECKOUT / "work", help="where all results go (default: work)")
    add("--raw", type=Path, metavar="DIR", help="take the raw text from here instead of downloading it")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--dry-run", action="store_true", help="show what is done, and the commands of what is to do")
    shown.add_argument("--print", action="store_true", help="show the whole configuration and all commands")
    add = parser.add_argument_group("training").add_argument
    add("--devices", type=positive, metavar="N", help="the first N GPUs (default: all), or N CPU processes")
    add("--precision", choices=PRECISIONS, help="train in this (default: the CONFIG's)")
    arguments = parser.parse_args(argv)
    names = [*NAMES[NAMES.index(arguments.first) : NAMES.index(arguments.last) + 1]]
    if not names:
        parser.error(f"--from {arguments.first} comes after --to {arguments.last}; the order is {', '.join(NAMES)}")
    if arguments.raw and "download" not in names:
        parser.error(f"--raw is for the stage download, which --from {arguments.first} leaves out; give one of the two")
    config = given_config(arguments, precision=arguments.precision)
    seeds = choose_seeds(config, arguments.seeds)
    options = {"devices": arguments.devices, "precision": arguments.precision}
    run = build_run(config, arguments.work, arguments.raw, **options)
    if arguments.print:
        print(run.show_whole(names, seeds))
    elif arguments.dry_run:
        print(run.show_to_do(names, seeds))
    else:
        run_stages(run, names, seeds)


if __name__ == "__main__":
    run_command(main)
