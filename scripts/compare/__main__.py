"""Compare runs: scores with intervals, verdicts on claims, the settings in which they differ.

  python -m scripts.compare work/X/A work/X/B    runs that there are; the first is what the others are compared with
  python -m scripts.compare FILE.yaml            those of a comparison file, and its claims (scripts/compare/plan.py)
  python -m scripts.compare FILE.yaml --run      first what is missing, by scripts.reproduce, one after the other

A seed that has its scores in the run's record.json, or diverged, is not run again. --work may name several folders:
runs are made in the first, and the records of the others count too. So a machine that is lent for minutes needs nothing
but the records of those before it. Other options (--devices N, --raw DIR, --from train) go to scripts.reproduce.
Several runs at a time, on GPUs or a cluster:
  snakemake -s scripts/sweep/Snakefile --cores all --resources gpu=8 --config compare=FILE.yaml
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.errors import UserError
from data_prep.common.outputs import atomic_file, check_writable
from scripts.compare.page import as_markdown, as_text, claims, table
from scripts.compare.plan import Comparison, Run, read_comparison, read_folders, read_run
from scripts.reproduce import __main__ as reproduce
from scripts.tables.cells import write_csv, write_latex
from scripts.tables.records import read_record


def missing(run: Run | None, seeds: Sequence[int]) -> list[int]:
    """The seeds that are left to run."""
    return [seed for seed in seeds if run is None or str(seed) not in {*run.scored, *run.diverged}]


def run_all(comparison: Comparison, works: Sequence[Path], options: Sequence[str], seeds: Sequence[str]) -> list[str]:
    """Run what is missing, of ``seeds`` alone if there are any; return the models that failed."""
    failed = []
    for model, of_model in comparison.models.items():
        config = comparison.config(model)
        chosen = [seed for seed in of_model if not seeds or str(seed) in seeds]
        if not (left := missing(read_run(model, config, works), chosen)):
            continue
        print(f"= {model}, seeds {', '.join(map(str, left))}", flush=True)
        # the stages after all seeds would wait for those that are not run here
        stages = [] if left == config.seeds else ["--to=score", f"--seeds={','.join(map(str, left))}"]
        try:
            reproduce.main([str(config.path), f"--work={works[0]}", *options, *stages])
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
        failed += [model] if missing(read_run(model, config, works), chosen) else []
    return failed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("what", type=Path, nargs="+", metavar="FILE | RUN", help="a comparison file, or folders work/<dataset>/<model>")
    add("--out", type=Path, metavar="FILE", help="write a page in Markdown")
    add("--csv", type=Path, metavar="FILE", help="write the table as CSV: a row for each run, a column for each number")
    add("--latex", type=Path, metavar="FILE", help="write the table for LaTeX, with booktabs")
    add("--work", type=Path, nargs="+", metavar="DIR", default=[CHECKOUT / "work"], help="see above (default: work)")
    add("--run", action="store_true", help="run what is missing first")
    add("--seeds", metavar="N,N", help="run these seeds alone")
    arguments, options = parser.parse_known_args(argv)
    if options and not arguments.run:
        parser.error(f"unknown: {' '.join(options)}; with --run they would go to scripts.reproduce")
    failed, verdicts, about = list[str](), list[str](), "A comparison"
    check_writable(*filter(None, (arguments.out, arguments.csv, arguments.latex)))
    file, *others = arguments.what
    if file.suffix == ".yaml":
        if others:
            parser.error(f"{len(arguments.what)} files; a comparison is one file, or folders of runs")
        comparison = read_comparison(file)
        about = comparison.about
        if arguments.run:
            failed = run_all(comparison, arguments.work, options, arguments.seeds.split(",") if arguments.seeds else [])
        read = [read_run(model, comparison.config(model), arguments.work) for model in comparison.models]
        runs = [run for run in read if run is not None]
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
        page = as_markdown(about, runs, baseline, verdicts)
        with atomic_file(arguments.out) as f:
            f.write(page)
        print(f"the page: {arguments.out}")
    if arguments.csv:
        write_csv(arguments.csv, [table(runs, baseline)])
    if arguments.latex:
        write_latex(arguments.latex, [table(runs, baseline)], verdicts, "python -m scripts.compare")
    if failed:
        raise UserError(f"failed: {', '.join(failed)}; each has said why above. The same command goes on from there")


if __name__ == "__main__":
    run_command(main)
