"""The records of a page, kept beside it in small files of text: they outlive the machine that the runs were on.

  <page>/<dataset>/<run>.json  the run's configuration; by seed what it was made with, its scores, costs and losses, the
                               checksums of hypotheses and model, and in place of the hypotheses the numbers of each
                               line that sacreBLEU makes the first score of
  <page>/<dataset>.json        how test and training text overlap; the speeds

<page> is the page's name without .md. They alone say what has been run: a seed that has its record with the same
configuration is not run again, wherever the page goes. What a run's folder says of it later changes nothing: to run it
again, remove the record.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from data_prep.dataset import load_dataset
from scripts.common.errors import UserError
from scripts.common.files import atomic_file, digest, read_json, read_lines, write_json
from scripts.fairseq_io.trainlog import TrainLog, read_log_file
from scripts.pipeline.config import Config
from scripts.pipeline.pipeline import digest_data
from scripts.reproduce.run import is_tuned, model_file, seed_root
from scripts.scoring.detokenise import lowercases
from scripts.scoring.metrics import Measure, measures
from scripts.scoring.score_names import FAMILY
from scripts.scoring.selection import numbers
from scripts.scoring.significance import counts
from scripts.suite import overlap
from scripts.tables.records import read_record

SCORES = {"bleu": ("sacrebleu", "chrf"), "rouge": ("rouge1", "rouge2", "rougeL"), "perplexity": ("perplexity",)}
"""The scores of a page by the kind of a dataset's score; models are compared by the first."""
COSTS = {"training": ("diverged", "updates", "seconds", "tokens_per_second", "peak_mb"), "generation": ("peak_mb",)}


@dataclass(frozen=True)
class Job:
    """A trial or a run of a suite: a configuration for scripts.reproduce, and its record, read once."""

    config: Config
    model: str  # as the suite file names it
    choice: dict[str, Any]  # its values of the grid
    text: str  # of its configuration
    folder: Path  # of its run
    kept: Path  # its record beside the page
    last: str = "table"  # the stage that it ends with; of a trial, train
    waits: bool = False  # for the trials that choose its values

    @property
    def name(self) -> str:
        """Dataset and run."""
        return f"{self.config.dataset}/{self.config.name}"

    @property
    def data(self) -> Path:
        """The folder of its dataset."""
        return self.folder.parent

    @property
    def kind(self) -> str:
        """The kind of its scores: bleu, rouge or perplexity."""
        return FAMILY[self.config.metric]

    @cached_property
    def record(self) -> dict[str, Any]:
        """Its record beside the page."""
        return self._read(self.kept, read_json)

    @cached_property
    def run(self) -> dict[str, Any]:
        """The record that scripts.reproduce keeps in its folder."""
        return self._read(self.folder / "record.json", read_record)

    def _read(self, path: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Read a record; one without seeds if there is none with this configuration, whatever its list of seeds."""
        found = read(path) if path.exists() else None
        if found:
            known, now = found["config"], self.config
            judged = is_tuned(replace(now, seeds=known["seeds"])) == is_tuned(now)  # a seed alone needs no validation
            if judged and {**known, "seeds": None} == {**now.merged(), "seeds": None}:
                return found
        return {"parameters": None, "seeds": {}}

    @cached_property
    def seeds(self) -> dict[int, dict[str, Any]]:
        """The facts of each seed that has come to its end: it has its scores, a trial's losses, or it diverged."""
        known = self.record["seeds"]
        return {seed: known[str(seed)] for seed in self.config.seeds if str(seed) in known}

    @property
    def missing(self) -> list[int]:
        """The seeds that are left to run."""
        return [seed for seed in self.config.seeds if seed not in self.seeds]

    @property
    def diverged(self) -> list[int]:
        """The seeds whose training diverged."""
        return [seed for seed, facts in self.seeds.items() if "diverged" in facts["training"]]

    @cached_property
    def scored(self) -> list[int]:
        """The seeds that have their scores."""
        return [seed for seed, facts in self.seeds.items() if facts["test"]]

    @property
    def loss(self) -> float | None:
        """The least loss on validation of the first seed; None before it has come to its end."""
        first = self.config.seeds[0]
        found = self.seeds[first]["valid_loss"].values() if first in self.seeds else []
        return math.inf if first in self.diverged else min(found, default=None)

    def scores(self, key: str) -> list[float]:
        """The score of each seed on test."""
        return [self.seeds[seed]["test"][key] for seed in self.scored]

    def costs(self, part: str, key: str) -> list[float]:
        """A figure of each seed's ``training`` or ``generation`` that has it."""
        return [self.seeds[seed][part][key] for seed in self.scored if key in self.seeds[seed][part]]

    def lines(self, seed: int) -> list[str]:
        """Of each line of the test set, what the first score of a seed is made of (``MetricOfCounts``)."""
        return str(self.seeds[seed]["lines"]).split("; ")

    def logs(self) -> dict[int, TrainLog]:
        """The losses of each seed."""
        logs = {}
        for seed in self.scored:
            train, valid = (
                {int(update): loss for update, loss in self.seeds[seed][kind].items()}
                for kind in ("train_loss", "valid_loss")
            )
            logs[seed] = TrainLog(train_loss=train, valid_loss=valid)
        return logs

    @property
    def references(self) -> Path:
        """The references of the test set, as people write."""
        return self.data / "prepared" / "raw" / f"test.{load_dataset(self.config.dataset).target}"

    def hypotheses(self, seed: int) -> Path:
        """The file of a seed's hypotheses of the test set, as people write."""
        return seed_root(self.folder, seed) / "scores" / "test" / "hypotheses.detok"

    def write_config(self) -> None:
        """Write its configuration, unless it is there."""
        path = self.config.path
        if not path.exists() or path.read_text(encoding="utf-8") != self.text:
            with atomic_file(path) as f:
                f.write(self.text)


def text_measures(dataset: str, kind: str) -> dict[str, Measure]:
    """The measures of a page on text as people write, by key; none of a language model."""
    about = load_dataset(dataset)
    if kind == "perplexity" or about.target is None:
        return {}
    found = measures({"metric": kind}, about.target, lowercase=lowercases(about, about.target))
    return {key: found[key] for key in SCORES[kind]}


def check_text(jobs: Sequence[Job]) -> None:
    """Refuse to go on with a dataset's records on another text.

    Raises:
        UserError: the binarised text is not that of a record.
    """
    text = _text(jobs[0])
    for job in jobs:
        if text and {facts.get("text") for facts in job.record["seeds"].values()} - {None, text}:
            raise UserError(
                f"{job.data / 'binarised'} is not the text that {job.kept} is a record of (Debian may have new "
                "descriptions): scores on it do not compare. Give the old text by --raw and another --work, or begin a "
                "page of its own by another --out and another --work"
            )


def _text(job: Job) -> str | None:
    """The identity of the binarised text of a job's dataset; None if it is not there."""
    binarised = job.data / "binarised"
    return digest_data(binarised) if binarised.is_dir() else None


def keep(jobs: Sequence[Job], last: str, path: Path) -> None:
    """Add to the records of a dataset's trials, or runs, the seeds that have come to their end in their folders.

    ``last`` says which, and ``path`` is the record of the dataset.

    Raises:
        UserError: the text of the dataset is not that of its records.
    """
    text, metrics = _text(jobs[0]), text_measures(jobs[0].config.dataset, jobs[0].kind)
    new = [(job, seeds) for job in jobs if job.last == last and (seeds := dict(_ended(job, text, metrics)))]
    if not new:
        return
    check_text(jobs)
    apart = list[int]()
    if "sacrebleu" in metrics and any(facts["test"] for _, seeds in new for facts in seeds.values()):
        shared = overlap.measure(jobs[0].config.dataset, jobs[0].data)
        apart, before = shared.apart, read_json(path) if path.exists() else {}
        shown = {"lines": shared.lines, "apart": len(apart), "in_families": shared.in_families}
        if before.get("overlap") != shown:
            write_json(path, before | {"overlap": shown})
    for job, seeds in new:
        for seed, facts in seeds.items():
            facts |= _of_lines(job, seed, metrics, apart) if facts["test"] else {}
        seeds |= {int(seed): facts for seed, facts in job.record["seeds"].items()}
        parameters = job.record["parameters"] or job.run["parameters"]
        by_seed = {str(seed): seeds[seed] for seed in sorted(seeds)}
        write_json(job.kept, {"config": job.config.merged(), "parameters": parameters, "seeds": by_seed})


def _ended(job: Job, text: str | None, metrics: Mapping[str, Measure]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the facts of each seed that has come to its end in a job's folder, on this text, and has no record."""
    for seed in job.missing:
        facts, root = job.run["seeds"].get(str(seed), {}), seed_root(job.folder, seed)
        log, started = (root / "checkpoints" / name for name in ("train.log", "started.json"))
        if not facts.get("training") or text is None or not started.exists() or read_json(started)["data"] != text:
            continue
        read = read_log_file(log) if log.exists() else TrainLog()
        losses = {
            key: {str(update): loss for update, loss in getattr(read, key).items() if math.isfinite(loss)}
            for key in ("train_loss", "valid_loss")
        }
        if not ("diverged" in facts["training"] or (losses["valid_loss"] if job.last == "train" else facts["test"])):
            continue
        if facts["test"] and metrics and not job.hypotheses(seed).exists():
            print(f"note: {job.name}, seed {seed}, is left out: there is no {job.hypotheses(seed)}", flush=True)
            continue
        known = {key: job.run.get(key) for key in ("machine", "versions", "precision")}
        known |= {"git": job.run["stages"].get(f"train:{seed}", {}).get("git"), "text": text}
        for part, keys in COSTS.items():
            given = facts.get(part) or {}
            known[part] = {key: given[key] for key in keys if given.get(key) is not None}
        yield seed, known | {"tuned": facts.get("tuned"), "test": numbers(facts["test"] or {})} | losses


def _of_lines(job: Job, seed: int, metrics: Mapping[str, Measure], apart: Sequence[int]) -> dict[str, Any]:
    """Facts of a seed's hypotheses and model, which are not kept themselves."""
    files = {"hypotheses": job.hypotheses(seed), "model": model_file(job.config, seed_root(job.folder, seed))}
    facts: dict[str, Any] = {"sha256": {name: digest([path]) for name, path in files.items() if path.exists()}}
    if metrics:
        lines, references = read_lines(files["hypotheses"]), read_lines(job.references)
        if apart:
            some, of = ([side[number] for number in apart] for side in (lines, references))
            facts["apart"] = {key: each.metric.corpus_score(some, [of]).score for key, each in metrics.items()}
        facts["lines"] = "; ".join(counts(metrics[SCORES[job.kind][0]].metric, lines, references))
    return facts
