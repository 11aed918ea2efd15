"""Run all stages of one configuration, from raw text to a row of the results table.

  download, prepare, binarise    work/<dataset>/{raw,prepared,binarised}, shared by all models of a dataset
  train, average or tune, generate, score    work/<dataset>/<model>/seed<N>/..., for each seed of the configuration
  select, speed    the best seed by validation; its speed, if the configuration has a section `speed`
  table    prints the row from work/<dataset>/<model>/record.json, then some lines of the best seed's test set

Before the first stage that runs, scripts.check checks the whole configuration; the stage train does so itself.
`tune` replaces `average` if settings are to be tuned or a seed is to be chosen. A language model has no stage
`generate`. A completed stage is skipped unless its settings or inputs have changed. After an interruption the same
command continues. Several such commands can run different seeds at the same time (--seeds).
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


def choose_seeds(config: Config, option: str | None) -> list[int]:
    """Return the seeds that the value of ``--seeds`` names, in the configuration's order; without it all seeds.

    Raises:
        UserError: the configuration has no such seed.
    """
    seeds = {str(seed): seed for seed in config.seeds}
    names = option.split(",") if option is not None else [*seeds]
    if unknown := [name for name in names if name not in seeds]:
        raise UserError(f"{config.path} has no seed {', '.join(unknown)}; its seeds are {', '.join(seeds)}")
    return [seed for name, seed in seeds.items() if name in names]


def run_stages(run: Run, names: list[str], seeds: list[int]) -> None:
    """Run the chosen stages under the locks of their folders, write the record, and print the row at the end.

    scripts.check runs first if any stage has to run, unless that is the training, which calls it.
    """
    chosen, first = run.chosen(names, seeds), names[0]
    next_stage = next((run.stages[key].name for key in chosen if run.stale_reason(key)), None)
    if next_stage not in (None, "train"):
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
                print(
                    f"note: skipped {run.stages[key].title} (--from); its output is used though it is stale: {reason}"
                )
        errors = [error for seed in seeds if (error := run_seed(run, names, seed))]
        if errors:
            raise UserError("\n".join(map(str, errors)))
        with lock(run.model_root):
            finish(run, names, seeds)


def run_seed(run: Run, names: list[str], seed: int) -> UserError | None:
    """Run the chosen stages of a seed. If its training diverges, return the error, so that other seeds still run.

    Raises:
        UserError: a stage failed for another reason.
    """
    failure = None
    with lock(seed_root(run.model_root, seed)):
        try:
            run.run(run.chosen(set(names) & set(SEED_STAGES), [seed]))
        except UserError as error:
            failure = error
        finally:  # keep the results of the stages that completed
            record = run.write_record(names[0])
    training = record["seeds"].get(str(seed), {}).get("training") or {}
    if failure and "diverged" not in training:
        raise failure
    return failure


def finish(run: Run, names: list[str], seeds: list[int]) -> None:
    """Run the stages that need the scores of all seeds; then print the row and the outcome."""
    keys = run.chosen(set(names) & set(MODEL_STAGES))
    remaining_keys = run.chosen(SEED_STAGES, {*run.config.seeds} - {*seeds})
    missing_seeds = list(dict.fromkeys(str(run.stages[key].seed) for key in remaining_keys if run.stale_reason(key)))
    if keys and missing_seeds:
        print(f"note: {' and '.join(keys)} must wait for the seeds {', '.join(missing_seeds)}", flush=True)
        keys = []
    run.run(keys)
    record = run.write_record(names[0])
    if names[-1] == "table":
        if record["best_seed"] is None and record["speed"] is None:
            raise UserError(f"no row to print: {run.model_root} has no complete scores; run --to score first")
        print("the chosen seeds are done\n" if missing_seeds else "all stages are done\n", flush=True)
        print(as_text([read_record(run.record)]))
    if shown := outcome(run):
        print(f"\n{shown}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = config_parser(__doc__)
    add = parser.add_argument
    stage: dict[str, Any] = {"metavar": "STAGE", "choices": NAMES}
    add("--from", dest="first", **stage, default="download", help="start with this stage (default: download)")
    add("--to", dest="last", **stage, default="table", help="end with this stage (default: table)")
    add("--seeds", metavar="N,N", help="run these seeds of the configuration (default: all)")
    add("--work", type=Path, metavar="DIR", default=CHECKOUT / "work", help="folder of all results (default: work)")
    add("--raw", type=Path, metavar="DIR", help="take the raw text from this folder instead of downloading it")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--dry-run", action="store_true", help="print which stages are done, and the commands of the others"
    )
    shown.add_argument("--print", action="store_true", help="print the whole configuration and all commands")
    add = parser.add_argument_group("training").add_argument
    add("--devices", type=positive, metavar="N", help="the first N GPUs (default: all), or N CPU processes")
    add("--precision", choices=PRECISIONS, help="train in this precision (default: the CONFIG's)")
    arguments = parser.parse_args(argv)
    names = [*NAMES[NAMES.index(arguments.first) : NAMES.index(arguments.last) + 1]]
    if not names:
        parser.error(f"--from {arguments.first} comes after --to {arguments.last}; the order is {', '.join(NAMES)}")
    if arguments.raw and "download" not in names:
        parser.error(f"--raw is for the stage download, which --from {arguments.first} skips; give only one of the two")
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
