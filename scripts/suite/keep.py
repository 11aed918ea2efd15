"""Taking the results of finished runs into the records beside a suite's page (scripts.suite.records)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import digest, read_json, read_lines, write_json
from scripts.reproduce.layout import model_file, seed_root
from scripts.scoring.significance import counts
from scripts.suite import overlap
from scripts.suite.plan import Job, Suite, run_jobs, trial_jobs
from scripts.suite.records import read_kept, read_run, text_of
from scripts.suite.results import Dataset, collect


def jobs_of(suite: Suite, work: Path, dataset: str) -> list[Job]:
    """The trials and runs of a dataset that can be run."""
    trials = [job for job, _ in trial_jobs(suite, work) if job.config.dataset == dataset]
    return trials + [job for name, _, job in run_jobs(suite, work) if job and name == dataset]


def check_text(suite: Suite, work: Path, dataset: str) -> None:
    """Refuse to go on with a dataset's records on another text.

    Raises:
        UserError: the binarised text is not that of a record.
    """
    text = text_of(work / dataset / "binarised")
    for job in jobs_of(suite, work, dataset):
        known = {facts.get("text") for facts in read_kept(job.kept, job.config).get("seeds", {}).values()}
        if text and known - {None, text}:
            raise UserError(
                f"{work / dataset / 'binarised'} is not the text that {job.kept} is a record of (Debian may have new "
                "descriptions): scores on it do not compare. Give the old text by --raw and another --work, or begin a "
                "page of its own by another --out and another --work"
            )


def keep(suite: Suite, work: Path) -> None:
    """Add to the records the seeds that have come to their end in the folders of runs and trials.

    Raises:
        UserError: the text of a dataset is not that of its records; those of the others are written.
    """
    errors = []
    for dataset in collect(suite, work):
        try:
            _keep(suite, work, dataset)
        except UserError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _keep(suite: Suite, work: Path, dataset: Dataset) -> None:
    root, path = work / dataset.name, suite.records / f"{dataset.name}.json"
    new = [(job, seeds) for job in jobs_of(suite, work, dataset.name) if (seeds := _new_seeds(job, dataset))]
    if not new:
        return
    check_text(suite, work, dataset.name)
    apart = list[int]()
    if dataset.kind == "bleu" and any(each["test"] for _, seeds in new for each in seeds.values()):
        found = overlap.measure(dataset.name, root)
        apart = found.apart
        facts = {"lines": found.lines, "apart": len(apart), "in_families": found.in_families}
        _write(path, dataset.facts | {"overlap": facts})
    for job, seeds in new:
        _write(job.kept, _with_seeds(job, seeds, dataset, root, apart))


def _write(path: Path, content: Any) -> None:
    if not path.exists() or read_json(path) != content:
        write_json(path, content)


def hypotheses_file(job: Job, seed: int) -> Path:
    """The file of a seed's hypotheses of the test set, as people write."""
    return seed_root(job.folder, seed) / "scores" / "test" / "hypotheses.detok"


def _new_seeds(job: Job, dataset: Dataset) -> dict[int, dict[str, Any]]:
    """The seeds that have come to their end in a run's folder, and have no record."""
    known, here = read_kept(job.kept, job.config).get("seeds", {}), read_run(job.folder, job.config).get("seeds", {})
    new = {seed: facts for seed, facts in job.seeds.items() if str(seed) in here and str(seed) not in known}
    for seed, facts in list(new.items()):
        if facts["test"] and dataset.measures and not hypotheses_file(job, seed).exists():
            print(f"note: {job.name}, seed {seed}, is left out: there is no {hypotheses_file(job, seed)}", flush=True)
            del new[seed]
    return new


def _with_seeds(
    job: Job, new: Mapping[int, dict[str, Any]], dataset: Dataset, root: Path, apart: Sequence[int]
) -> dict[str, Any]:
    run, kept = read_run(job.folder, job.config), read_kept(job.kept, job.config)
    seeds = kept.get("seeds", {}) | {
        str(seed): facts | _of_lines(job, seed, facts, dataset, root, apart) for seed, facts in new.items()
    }
    parameters = kept.get("parameters") or run["parameters"]
    return {**run, "parameters": parameters, "seeds": dict(sorted(seeds.items(), key=lambda item: int(item[0])))}


def _of_lines(
    job: Job, seed: int, facts: Mapping[str, Any], dataset: Dataset, root: Path, apart: Sequence[int]
) -> dict[str, Any]:
    """Facts of a seed's hypotheses and model, which are not kept themselves."""
    if not facts["test"]:
        return {}
    files = {"hypotheses": hypotheses_file(job, seed), "model": model_file(job.config, seed_root(job.folder, seed))}
    found: dict[str, Any] = {"sha256": {name: digest([path]) for name, path in files.items() if path.exists()}}
    if not dataset.measures:
        return found
    lines, references = (
        read_lines(path) for path in (files["hypotheses"], root / "prepared" / "raw" / f"test.{dataset.target}")
    )
    if apart:
        some, of = ([side[number] for number in apart] for side in (lines, references))
        scores = {key: measure.metric.corpus_score(some, [of]).score for key, measure in dataset.measures.items()}
        found["apart"] = scores
    return found | {"lines": "; ".join(counts(dataset.measures[dataset.key].metric, lines, references))}
