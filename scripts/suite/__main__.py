"""Run a comparison from its suite file, and write its page.

scripts.reproduce trains each model after the trials that choose its values, in the order of the file. Finished work is
skipped: after an interruption the same command resumes. A training that diverges is a result, and is not tried again.
At the end, if a model has no speed yet, all models generate in turns and are timed (suite/speed.py). Small records of
the runs are put beside the page (suite/records.py), which is written from them alone; --page-only writes it from those
that there are. If the records are in git, what one machine has finished is not run again by another.

--sweep runs them by Snakemake, several at a time, on processors, GPUs or a cluster (scripts/sweep/Snakefile): first all
trials, then all runs.
  OMP_NUM_THREADS=1 ... --devices 1 --sweep "snakemake --cores 2"
  --sweep "snakemake --cores all --resources gpu=8"      --sweep "snakemake --executor slurm --jobs 20"

--from train is for a machine without a network: copy <work>/<dataset>/{prepared,binarised} there, and the records back.
--seeds is for a machine that is lent for minutes: it runs a few seeds to their end, and times no generation.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scripts.common import CHECKOUT
from scripts.common.command import INTERRUPTED, argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.process import child, python_module
from scripts.common.terminal import aligned
from scripts.suite import archive, page, speed
from scripts.suite.plan import Suite, jobs_of, keep_all, read_suite, run_jobs, trial_jobs
from scripts.suite.records import Job, check_text
from scripts.suite.results import collect

SNAKEFILE = CHECKOUT / "scripts" / "sweep" / "Snakefile"
KEEP_SECONDS = 600  # a sweep may take days: what has ended is put beside the page meanwhile


def reproduce(job: Job, options: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """The command of a job, for some of its seeds; none of them are all."""
    command = [*python_module("scripts.reproduce"), str(job.config.path), *options]
    if seeds in ([], job.config.seeds):
        return [*command, "--to", job.last]
    last = "score" if job.last == "table" else job.last  # the stages after all seeds would wait for those elsewhere
    return [*command, "--to", last, f"--seeds={','.join(map(str, seeds))}"]


def run_here(job: Job, options: Sequence[str], seeds: Sequence[int]) -> None:
    """Run seeds of a job; its failure is seen by what it leaves undone.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    print(f"= {job.name}", flush=True)
    job.write_config()
    with child(reproduce(job, options, seeds)) as process:
        if process.wait() in (INTERRUPTED, *range(-64, 0)):
            raise KeyboardInterrupt


def run_by_snakemake(jobs: Sequence[Job], suite: Suite, arguments: argparse.Namespace) -> None:
    """Run jobs of one kind by the rules of scripts/sweep; take what has ended into the records meanwhile."""
    for job in jobs:
        job.write_config()
    settings = {"configs": " ".join(str(job.config.path) for job in jobs), "work": suite.work, "to": jobs[0].last}
    settings |= {"raw": arguments.raw, "gpus_per_seed": arguments.devices}
    settings["skip"] = " ".join(f"{job.name}.seed{seed}" for job in jobs for seed in job.seeds)
    given = [f"{key}={value}" for key, value in settings.items() if value not in (None, "")]
    command = [*shlex.split(arguments.sweep), "--keep-going", "-s", str(SNAKEFILE), "--config", *given]
    with child(command) as process:
        while process.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(KEEP_SECONDS)
            keep_all(suite)


def run(suite: Suite, arguments: argparse.Namespace) -> list[str]:
    """Run what is missing; return what failed."""
    given = {"--work": suite.work, "--raw": arguments.raw, "--devices": arguments.devices, "--from": arguments.first}
    options = [f"{flag}={value}" for flag, value in given.items() if value is not None]

    def prepare(jobs: Sequence[Job]) -> None:
        """Prepare the dataset of some jobs, unless --from takes it as it is; its text must be that of the records."""
        if arguments.first is None:
            run_here(replace(jobs[0], last="binarise"), options, [])
        check_text(jobs)

    def left(job: Job) -> list[int]:
        """The seeds of a job that are to be run now: of a trial all."""
        everything = arguments.seeds is None or job.last == "train"
        return [seed for seed in job.missing if everything or str(seed) in arguments.seeds.split(",")]

    def run_all(jobs: Sequence[Job]) -> list[str]:
        to_do = [job for job in jobs if left(job)]
        if to_do and arguments.sweep:
            run_by_snakemake(to_do, suite, arguments)
        else:
            for job in to_do:
                # of seeds by name each is kept when it ends: a machine that is there for minutes may go with the next
                for seeds in [left(job)] if arguments.seeds is None else [[seed] for seed in left(job)]:
                    run_here(job, options, seeds)
                    keep_all(suite)
        return [job.name for job in to_do if left(replace(job))]  # by its record as it is now

    keep_all(suite)  # what another process has run, too
    for jobs in jobs_of(suite).values():
        if any(job.missing for job in jobs) and any(job.kept.exists() for job in jobs):
            prepare(jobs)
    failed, tried = [], set[str]()
    # One sweep of all leaves no device idle while the last job of a few runs
    for some in [suite.runs] if arguments.sweep else [(runs,) for runs in suite.runs]:
        part = replace(suite, runs=some)
        first = {suite.like.get(model, model) for model in part.models} - tried
        failed += run_all([job for job in trial_jobs(part) if job.model in first])
        failed += run_all([job for job in run_jobs(part) if not job.waits])
        tried |= first
    for each in collect(suite) if arguments.seeds is None else ():
        if speed.is_due(each):
            prepare(jobs_of(suite)[each.name])
            try:
                speed.record(suite, each)
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)
                failed.append(f"the speed of {each.name}")
    return failed


def overview(suite: Suite) -> list[str]:
    """A line for each trial and run: how far it has come."""

    def state(job: Job) -> str:
        if job.waits:
            return "waits for the trials"
        if job.diverged == job.config.seeds:
            return "diverged"
        if not job.missing:
            return f"done, loss {job.loss:.3f}" if job.last == "train" else "done"
        return f"to do, {len(job.scored)} of {len(job.config.seeds)} seeds done" if job.scored else "to do"

    return aligned([[job.name, state(job)] for job in [*trial_jobs(suite), *run_jobs(suite)]], left=2)


def only(suite: Suite, words: Sequence[str]) -> Suite:
    """Leave the models of a suite that have one of ``words`` in DATASET/MODEL, and the trials for them.

    Raises:
        UserError: none is left.
    """
    names = [f"{runs.dataset}/{model}" for runs in suite.runs for model in runs.models]
    wanted = {name for name in names if any(word in name for word in words)}
    if not wanted:
        raise UserError(f"--only {','.join(words)}: no run has that in its name; the runs are {', '.join(names)}")
    runs = [replace(r, models=tuple(m for m in r.models if f"{r.dataset}/{m}" in wanted)) for r in suite.runs]
    tried = {suite.like.get(model, model) for each in runs for model in each.models}
    trials = [replace(t, models=tuple(m for m in t.models if m in tried)) for t in suite.trials]
    return replace(suite, runs=tuple(r for r in runs if r.models), trials=tuple(t for t in trials if t.models))


def main() -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("suite", type=Path, metavar="FILE", help="such as configs/compare/two_cores.yaml; keys: suite/plan.py")
    add("--work", type=Path, metavar="DIR", help="where all results go (default: work/<FILE's name>)")
    add("--raw", type=Path, metavar="DIR", help="take the raw text from here instead of downloading it")
    add("--from", dest="first", metavar="STAGE", help="begin each run with this stage of scripts.reproduce: train")
    add("--devices", type=int, metavar="N", help="of each run; see scripts.reproduce --help")
    add("--sweep", metavar="COMMAND", help="run the jobs by Snakemake; see above")
    what = "the page; what has its record beside it is not run again (default: RESULTS.md in DIR)"
    add("--out", type=Path, metavar="FILE", help=what)
    add("--archive", type=Path, metavar="FILE", help="pack records, hypotheses, logs and models into this .tar.gz")
    what = "run what has one of these in DATASET/MODEL, and its trials: debian_lm,fconv"
    add("--only", metavar="WORDS", help=what)
    add("--seeds", metavar="N,N", help="run these seeds alone, after their trials (0: the trials alone)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--dry-run", action="store_true", help="show what is done and what is to do")
    shown.add_argument("--page-only", action="store_true", help="run nothing, write the page from what there is")
    arguments = parser.parse_args()
    if arguments.sweep and (arguments.first or arguments.seeds):
        raise UserError("--from and --seeds are for runs one after the other; leave out --sweep")
    work = arguments.work or CHECKOUT / "work" / arguments.suite.stem
    suite = read_suite(arguments.suite, work, arguments.out or work / "RESULTS.md")
    here = only(suite, arguments.only.split(",")) if arguments.only else suite
    if arguments.dry_run:
        print("\n".join(overview(here)))
        return
    files = [path for kind in ("*.json", "*/*.json", "*.svg") for path in suite.records.glob(kind)]
    if any(path.suffix == ".json" for path in files):  # a page without records could not be made again
        generated = page.is_page(suite.page)
        ownership.adopt(*files, *([suite.page] if generated else []), generated=generated)
    ownership.check_writable(suite.page, *files, *([arguments.archive] if arguments.archive else []))
    failed = [] if arguments.page_only else run(here, arguments)
    keep_all(suite)
    page.write(suite)
    print(f"the page: {suite.page}")
    if arguments.archive:
        archive.write(suite, arguments.archive)
        print(f"the archive: {arguments.archive}")
    if failed:
        raise UserError(f"failed: {', '.join(failed)}; each has said why above. The same command goes on from there")


if __name__ == "__main__":
    run_command(main)
