"""Taking the results of finished runs into the records beside a suite's page (scripts.suite.records)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.common.files import digest, read_json, read_lines, write_json
from scripts.pipeline.stamp import digest_data
from scripts.reproduce.layout import model_file, seed_root
from scripts.scoring.significance import counts
from scripts.suite import overlap, speed
from scripts.suite.plan import Job, Suite, run_jobs, trial_jobs
from scripts.suite.records import check_text, read_kept, read_run
from scripts.suite.results import Dataset, collect


def keep(suite: Suite, work: Path) -> None:
    """Add to the records what the folders of runs and trials have beyond them.

    Raises:
        UserError: the text of a dataset is not that of its records.
    """
    for dataset in collect(suite, work):
        root, path = work / dataset.name, suite.records / f"{dataset.name}.json"
        trials = [job for job, _ in trial_jobs(suite, work) if job.config.dataset == dataset.name]
        runs = [job for each, _, job in run_jobs(suite, work) if job and each == dataset.name]
        new = [(job, found) for job in (*trials, *runs) if (found := _new_seeds(job))]
        if not new and not (root / speed.NAME).exists():
            continue
        check_text(path, root / "binarised")
        apart: Sequence[int] = ()
        facts = {"data": digest_data(root / "binarised")} | dataset.facts
        if dataset.kind == "bleu" and any(each["test"] for _, seeds in new for each in seeds.values()):
            overlaps = overlap.measure(dataset.name, root)
            apart = overlaps.apart
            facts["overlap"] = {"lines": overlaps.lines, "apart": len(apart), "in_families": overlaps.in_families}
        _write(path, _with_speeds(facts, root / speed.NAME))
        for job, seeds in new:
            _write(job.kept, _with_seeds(job, seeds, dataset, root, apart))


def _write(path: Path, content: Any) -> None:
    if not path.exists() or read_json(path) != content:
        write_json(path, content)


def _new_seeds(job: Job) -> dict[str, dict[str, Any]]:
    """The seeds that a run's folder has and its record has not, or of another training or other scores."""
    known = read_kept(job.kept, job.config).get("seeds", {})
    found = read_run(job.folder, job.config).get("seeds", {})
    same = ("training", "scored")
    return {
        seed: facts
        for seed, facts in found.items()
        if seed not in known or any(known[seed][key] != facts[key] for key in same)
    }


def _with_seeds(
    job: Job, new: dict[str, dict[str, Any]], dataset: Dataset, root: Path, apart: Sequence[int]
) -> dict[str, Any]:
    record = read_kept(job.kept, job.config) or {**read_run(job.folder, job.config), "seeds": {}}
    new = {seed: facts | _of_lines(job, int(seed), dataset, root, apart) for seed, facts in new.items()}
    return record | {"seeds": dict(sorted((record["seeds"] | new).items(), key=lambda item: int(item[0])))}


def _of_lines(job: Job, seed: int, dataset: Dataset, root: Path, apart: Sequence[int]) -> dict[str, Any]:
    """Facts of a seed's hypotheses and model, which are not kept themselves."""
    folder = seed_root(job.folder, seed)
    hypotheses = folder / "scores" / "test" / "hypotheses.detok"
    files = {"hypotheses": hypotheses, "model": model_file(job.config, folder)}
    found: dict[str, Any] = {"sha256": {name: digest([path]) for name, path in files.items() if path.exists()}}
    if job.last == "train" or not dataset.measures or not hypotheses.exists():
        return found
    lines, references = read_lines(hypotheses), read_lines(root / "prepared" / "raw" / f"test.{dataset.target}")
    if apart:
        some, of = ([side[number] for number in apart] for side in (lines, references))
        scores = {key: measure.metric.corpus_score(some, [of]).score for key, measure in dataset.measures.items()}
        found["apart"] = scores
    return found | {"lines": "; ".join(counts(dataset.measures[dataset.key].metric, lines, references))}


def _with_speeds(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    """Take the speeds that were measured here, unless models would get lost whose files are elsewhere."""
    if not path.exists():
        return facts
    old, new = facts.get("speed"), read_json(path)
    lost = old["seconds"].keys() - new["seconds"].keys() if old else set[str]()
    if lost:
        print(
            f"note: the speeds of {path.parent.name} stay as they were: {', '.join(sorted(lost))} cannot be timed here"
        )
        return facts
    return facts | {"speed": new}
