"""A comparison file, and the records of its runs.

  about: text          what is compared, for the page
  baseline: MODEL      what the others are compared with; a MODEL is a configuration beside the file, without .yaml
  models: {MODEL: [SEED, ...], ...}    in the order in which they are run; all of one dataset
  claims: [{says: text, model: MODEL, than: MODEL, at_least: X}, ...]
                       the first one's score minus the other's is at least X (of perplexities the other way round)

A run's record.json is all that is read of it: it has the scores, and of each line the counts that they are made of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data_prep.common.schema import build, require
from data_prep.common.strict_yaml import read_yaml
from data_prep.dataset import load_dataset
from scripts.config import Config, load_config
from scripts.scoring.detokenise import lowercases
from scripts.scoring.metrics import measures
from scripts.scoring.score_names import COMPARED
from scripts.scoring.selection import summarise
from scripts.scoring.significance import MetricOfCounts
from scripts.tables.records import lookup, metric, read_record


@dataclass(frozen=True)
class Claim:
    """A claim as a difference of two models' scores that is at least so much."""

    says: str
    model: str
    than: str
    at_least: float


@dataclass(frozen=True)
class Comparison:
    """A comparison file."""

    file: Path
    about: str
    baseline: str
    models: dict[str, tuple[int, ...]]
    claims: tuple[Claim, ...] = ()

    def config(self, model: str) -> Config:
        """The configuration of a model."""
        return load_config(self.file.parent / f"{model}.yaml")


def read_comparison(path: Path) -> Comparison:
    """Read a comparison file.

    Raises:
        UserError: a key is unknown or of another type, or a model or seed is named that is not there.
    """
    comparison: Comparison = build(Comparison, read_yaml(path), file=path, preset={"file": path})
    one_of = f"one of `models`: {', '.join(comparison.models)}"
    named = [("claims", name) for claim in comparison.claims for name in (claim.model, claim.than)]
    for key, name in [("baseline", comparison.baseline), *named]:
        require(path, name in comparison.models, key, name, one_of)
    datasets = set()
    for model, seeds in comparison.models.items():
        config = comparison.config(model)
        datasets.add(config.dataset)
        require(path, set(seeds) <= set(config.seeds), f"models.{model}", list(seeds), f"seeds of {config.seeds}")
    require(path, len(datasets) == 1, "models", ", ".join(sorted(datasets)), "models of one dataset")
    return comparison


@dataclass(frozen=True)
class Run:
    """A model under its name in the comparison, with its record."""

    name: str
    record: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The score that models are compared by."""
        return COMPARED[metric(self.record)]

    @property
    def judged(self) -> str:
        """The configuration's own score; of ROUGE the first."""
        judge = lookup(self.record, "config.score.metric") or "bleu"
        return self.key if judge == "rouge" else judge

    @cached_property
    def scored(self) -> dict[str, dict[str, Any]]:
        """Scores of each seed on the test set."""
        return {seed: facts["test"] for seed, facts in self.record["seeds"].items() if facts["test"]}

    @property
    def diverged(self) -> list[str]:
        """The seeds whose training diverged."""
        return [seed for seed, facts in self.record["seeds"].items() if lookup(facts, "training.diverged") is not None]

    def scores(self, key: str) -> list[float]:
        """A score of each seed that has it."""
        return [scores[key] for scores in self.scored.values() if key in scores]

    @cached_property
    def counted(self) -> MetricOfCounts | None:
        """The score that models are compared by, of the counts of lines; None of a language model."""
        dataset = load_dataset(self.record["dataset"])
        if self.key == "perplexity" or dataset.target is None:
            return None
        lower = lowercases(dataset, dataset.target)
        metrics = measures(self.record["config"]["score"], dataset.target, lowercase=lower)
        return MetricOfCounts(metrics[self.key].metric)

    def lines(self) -> list[list[str]]:
        """Of each seed the counts of each line of the test set; a record from before there were any has none."""
        return [scores["lines"].split("; ") for scores in self.scored.values() if "lines" in scores]


def read_run(name: str, config: Config, works: Sequence[Path]) -> Run | None:
    """Read the records of a configuration in several work folders as one; what comes first counts.

    None if there is none of these settings.
    """
    joined: dict[str, Any] = {}
    for work in works:
        path = work / config.dataset / config.name / "record.json"
        record = read_record(path) if path.exists() else None
        if record and record["config"] == config.merged():
            joined = {**record, **joined, "seeds": {**record["seeds"], **joined.get("seeds", {})}}
    return Run(name, joined | summarise(config.metric, joined["seeds"])) if joined else None


def read_folders(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders of runs by the names of their models; by their paths where two have one name."""
    names = [read_record(folder / "record.json")["model"] for folder in folders]
    return dict(zip(names if len({*names}) == len(names) else map(str, folders), folders, strict=True))
