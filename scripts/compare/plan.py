"""A comparison file, and the records of its runs.

  about: text          the page's title
  baseline: MODEL      the model that all are compared with
  models: {MODEL: [SEED, ...], ...}    in the order in which they are run; all of one dataset
  claims: [{says: text, model: MODEL, than: MODEL, at_least: X}, ...]
                       the score of `model` minus that of `than` is at least X; for perplexities the reverse difference

A MODEL is the path of a configuration from the file's folder, without .yaml.

Of a run, only record.json is read. It has the scores, and for each line of the test set the counts that scores are
computed from.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from scripts.tables.records import flat, lookup, metric, read_record


@dataclass(frozen=True)
class Claim:
    """A claim: the difference of two models' scores is at least ``at_least``."""

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
        """Load the configuration of a model."""
        return load_config(self.file.parent / f"{model}.yaml")


def read_comparison(path: Path) -> Comparison:
    """Read a comparison file.

    Raises:
        UserError: a key is unknown or has the wrong type, or a model or seed does not exist.
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
    """A model's record, under the name that the model has in the comparison."""

    name: str
    record: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return the score that models are compared by."""
        return COMPARED[metric(self.record)]

    @property
    def chosen_by(self) -> str:
        """Return the score by which the configuration chooses its settings and seed; ROUGE-1 stands for ROUGE."""
        name = lookup(self.record, "config.score.metric") or "bleu"
        return self.key if name == "rouge" else name

    @cached_property
    def scored(self) -> dict[str, dict[str, Any]]:
        """Return the test scores of each seed that has them."""
        return {seed: facts["test"] for seed, facts in self.record["seeds"].items() if facts["test"]}

    @property
    def diverged(self) -> list[str]:
        """Return the seeds whose training diverged."""
        return [seed for seed, facts in self.record["seeds"].items() if lookup(facts, "training.diverged") is not None]

    def scores(self, key: str) -> list[float]:
        """Return one test score of each seed that has it."""
        return [scores[key] for scores in self.scored.values() if key in scores]

    @cached_property
    def counted(self) -> MetricOfCounts | None:
        """Return the metric that models are compared by, on the counts of lines; None for a language model."""
        dataset = load_dataset(self.record["config"]["dataset"])
        if self.key == "perplexity" or dataset.target is None:
            return None
        lower = lowercases(dataset, dataset.target)
        metrics = measures(self.record["config"]["score"], dataset.target, lowercase=lower)
        return MetricOfCounts(metrics[self.key].metric)

    def lines(self) -> list[list[str]]:
        """Return for each seed the counts of each line of the test set; empty if the record has no counts."""
        return [scores["lines"].split("; ") for scores in self.scored.values() if "lines" in scores]

    def sacrebleu_scores(self) -> list[Any]:
        """Return sacreBLEU's score object for each seed, from the counts of lines; empty for other metrics."""
        seeds = self.lines() if self.key == "sacrebleu" else []
        return [self.counted.score(lines) for lines in seeds if self.counted is not None]

    def speeds(self, section: str = "speed") -> dict[int, dict[str, Any]]:
        """Return mean and deviation of sentences per second, by the smallest number of subwords of a source line.

        Args:
            section: ``speed``, or ``speed.baseline`` for the baseline measured beside it.
        """
        points = lookup(self.record, f"{section}.by_length") or []
        return {point["from"]: point["sentences_per_second"] for point in points if "from" in point}


def read_run(name: str, config: Config, works: Sequence[Path]) -> Run | None:
    """Join the records of a configuration in several work folders; a seed is taken from the first folder that has it.

    Returns None if no folder has a record with these settings. A configuration may get more seeds: the list of its
    seeds is not compared.
    """
    joined: dict[str, Any] = {}
    for work in works:
        path = work / config.dataset_name / config.name / "record.json"
        record = read_record(path) if path.exists() else None
        if record and _without_seeds(record["config"]) == _without_seeds(config.merged()):
            seeds = {**record["seeds"], **joined.get("seeds", {})}
            joined = {**record, **joined, "config": config.merged(), "seeds": seeds}
    return Run(name, joined | summarise(config.metric, joined["seeds"])) if joined else None


def _without_seeds(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "seeds"}


def changed_since(config: Config, works: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence for each record that ``read_run`` ignores, with a setting that the configuration has changed."""
    now = dict(flat("", _without_seeds(config.merged())))
    for path in (work / config.dataset_name / config.name / "record.json" for work in works):
        if not path.exists():
            continue
        then = dict(flat("", _without_seeds(read_record(path)["config"])))
        for key in [key for key in then | now if then.get(key) != now.get(key)][:1]:
            was, is_now = then.get(key, "not set"), now.get(key, "not set")
            yield f"{path} is ignored: its `{key}` was {was}, and is {is_now} in {config.path}"


def read_folders(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the folders by the names of their models, or by their paths if two models have the same name."""
    names = [read_record(folder / "record.json")["model"] for folder in folders]
    return dict(zip(names if len({*names}) == len(names) else map(str, folders), folders, strict=True))
