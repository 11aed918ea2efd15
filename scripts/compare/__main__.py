"""Compare runs: scores with intervals, verdicts on claims, the settings in which the runs differ.

  python -m scripts.compare work/X/A work/X/B    finished runs; the first is the baseline
  python -m scripts.compare FILE.yaml            the runs of a comparison file, and its claims (scripts/compare/plan.py)
  python -m scripts.compare FILE.yaml --run      the same, after running what is missing with scripts.reproduce

With --run, a seed that has test scores in the run's record.json, or whose training diverged, is not run again. With
several folders after --work, new runs are made in the first, and records in the others count as well. A new machine
therefore needs only the records of the machines before it. Further options (--devices N, --raw DIR, --from train) are
passed to scripts.reproduce. To run several at a time, on GPUs or a cluster:
  snakemake -s scripts/sweep/Snakefile --cores all --resources gpu=8 --config compare=FILE.yaml
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file, check_writable
from scripts.compare.page import as_markdown, as_text, claims, speed_table, table
from scripts.compare.plan import Comparison, Run, changed_since, read_comparison, read_folders, read_run
from scripts.reproduce import __main__ as reproduce
from scripts.tables.cells import write_csv, write_latex
from scripts.tables.records import read_record


def missing(run: Run | None, seeds: Sequence[int]) -> list[int]:
    """Return the seeds that have neither test scores nor a diverged training."""
    return [seed for seed in seeds if run is None or str(seed) not in {*run.scored, *run.diverged}]


def run_all(comparison: Comparison, works: Sequence[Path], options: Sequence[str], seeds: Sequence[str]) -> list[str]:
    """Run the seeds that are missing, and return the models that failed.

    Args:
        comparison: the models and their seeds.
        works: the folders of runs; new runs go to the first.
        options: further options for scripts.reproduce.
        seeds: run these alone; all if empty.
    """
    failed = []
    for model, planned_seeds in comparison.models.items():
        config = comparison.config(model)
        chosen = [seed for seed in planned_seeds if not seeds or str(seed) in seeds]
        if not (missing_seeds := missing(read_run(model, config, works), chosen)):
            continue
        names = list(map(str, missing_seeds))
        print(f"= {model}, seeds {', '.join(names)}", flush=True)
        # the stages after `score` need all seeds of the configuration
        stages = [] if missing_seeds == config.seeds else ["--to=score", f"--seeds={','.join(names)}"]
        try:
            reproduce.main([str(config.path), f"--work={works[0]}", *options, *stages])
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
        failed += [model] if missing(read_run(model, config, works), chosen) else []
    return failed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("what", type=Path, nargs="+", metavar="FILE | RUN", help="a comparison file, or folders of runs")
    add("--out", type=Path, metavar="FILE", help="write a page in Markdown")
    add(
        "--csv", type=Path, metavar="FILE", help="write the tables as CSV: a row for each run, a column for each number"
    )
    add("--latex", type=Path, metavar="FILE", help="write the tables for LaTeX, with booktabs")
    add(
        "--work",
        type=Path,
        nargs="+",
        metavar="DIR",
        default=[CHECKOUT / "work"],
        help="folders of runs (default: work)",
    )
    add("--run", action="store_true", help="run the missing seeds first")
    add("--seeds", metavar="N,N", help="with --run: run these seeds alone")
    words = list(sys.argv[1:] if argv is None else argv)
    arguments, options = parser.parse_known_args(words)
    if options and not arguments.run:
        parser.error(f"unknown: {' '.join(options)}; only with --run are further options passed to scripts.reproduce")
    failed, verdicts, about = list[str](), list[str](), "A comparison"
    check_writable(*filter(None, (arguments.out, arguments.csv, arguments.latex)))
    file = arguments.what[0]
    if file.suffix == ".yaml":
        if len(arguments.what) > 1:
            parser.error(f"{len(arguments.what)} files; expected one comparison file, or folders of runs")
        comparison = read_comparison(file)
        about = comparison.about
        if arguments.run:
            failed = run_all(comparison, arguments.work, options, arguments.seeds.split(",") if arguments.seeds else [])
        runs = []
        for model in comparison.models:
            config = comparison.config(model)
            if run := read_run(model, config, arguments.work):
                runs.append(run)
            else:
                for sentence in changed_since(config, arguments.work):
                    print(sentence, file=sys.stderr, flush=True)
        if not runs:
            raise UserError(f"no model of {file} has been run in {arguments.work[0]}; add --run")
        by_name = {run.name: run for run in runs}
        baseline, verdicts = by_name.get(comparison.baseline, runs[0]), claims(comparison, by_name)
    else:
        folders = read_folders(arguments.what).items()
        runs = [Run(name, read_record(folder / "record.json")) for name, folder in folders]
        baseline = runs[0]
    if arguments.out is None:
        print(as_text(runs, baseline, verdicts))
    else:
        page = as_markdown(about, shlex.join(["python", "-m", "scripts.compare", *words]), runs, baseline, verdicts)
        with atomic_file(arguments.out) as f:
            f.write(page)
        print(f"the page: {arguments.out}")
    tables = list(filter(None, [table(runs, baseline), speed_table(runs)]))
    if arguments.csv:
        write_csv(arguments.csv, tables)
    if arguments.latex:
        write_latex(arguments.latex, tables, verdicts, "python -m scripts.compare")
    if failed:
        raise UserError(f"failed: {', '.join(failed)}; the reasons are above. The same command continues from there")


if __name__ == "__main__":
    run_command(main)
