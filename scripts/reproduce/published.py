"""Score the models that the paper's authors published: from their archives to BLEU beside the paper's.

work/pretrained/NAME                        the model as ``scripts.pretrained get`` makes it
work/pretrained/test_sets/DATASET           the raw files of a test set, shared
work/pretrained/scores/NAME/{prepared,binarised,hypotheses,scores}, NAME.yaml
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_prep.dataset import load_dataset
from scripts.common.errors import UserError
from scripts.common.files import read_json, write_json, write_lines
from scripts.common.lock import folder_lock
from scripts.common.terminal import aligned
from scripts.fairseq_io.published import Published, Shelf
from scripts.fairseq_io.trained import find_trained
from scripts.pipeline.pipeline import Pipeline, Stage
from scripts.scoring.score_names import NAMES as SCORES


@dataclass(frozen=True)
class Outcome:
    """One model's score, or the reason why it has none."""

    model: Published
    tolerance: float
    score: float | None = None
    signature: str = ""
    error: str | None = None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, as printed; None where one is missing."""
        if self.score is None or self.model.figure is None:
            return None
        return round(round(self.score, 2) - self.model.figure, 2)

    @property
    def failed(self) -> bool:
        """Return True if it has no score, or one too far from the paper's."""
        return self.score is None or (self.difference is not None and abs(self.difference) > self.tolerance)

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.error is not None:
            return f"no score: {self.error}"
        if self.difference is None:
            return "the paper has no figure"
        return "differs" if self.failed else "as published"


def score(shelf: Shelf, models: Sequence[Published], root: Path, origin: str) -> None:
    """Score the models one after the other, whichever of them fail, and print the table."""
    outcomes = []
    for model in models:
        print(f"==== {model.name}", flush=True)
        try:
            outcomes.append(_score(shelf, model, root, origin))
        except UserError as error:
            print(f"{model.name}: {error}", flush=True)
            outcomes.append(Outcome(model, shelf.tolerance, error=str(error).partition(";")[0].partition(":")[0]))
    with folder_lock(root / "scores"):
        _keep(outcomes, root / "scores" / "scores.json")
    print("\n".join(report(outcomes)), flush=True)
    if failed := [each.model.name for each in outcomes if each.failed]:
        raise UserError(
            f"{len(failed)} of {len(outcomes)} models are not within {shelf.tolerance} of the paper's figure: "
            f"{', '.join(failed)}; what is said of each above is why"
        )


def _score(shelf: Shelf, model: Published, root: Path, origin: str) -> Outcome:
    folder = root / "scores" / model.name
    with folder_lock(folder):
        first = model_stage(shelf, model, root, origin)
        Pipeline({first.key: first}).run([first.key])
        config = folder / f"{model.name}.yaml"
        write_lines(config, configuration(model).splitlines())
        stages = {stage.key: stage for stage in (first, *score_stages(model, root, config))}
        pipeline = Pipeline(stages)
        with folder_lock(stages["download"].folder.parent):
            pipeline.run(["download"])
        pipeline.run([key for key in stages if key not in (first.key, "download")])
        found = read_json(stages["score"].folder / "scores.json")
    score = found[model.measure]
    how = f"{found['details'][model.measure]['signature']} {found['signature']}"
    outcome = Outcome(model, shelf.tolerance, score, how)
    print(f"==== {model.name}: {SCORES[model.measure]} {score:.2f}, {outcome.verdict}\n", flush=True)
    return outcome


def configuration(model: Published) -> str:
    """The model's configuration with the settings that its authors published, of the checkpoint as it is."""
    content = {"base": str(model.config.resolve()), "average": None, "tune": None, "generate": model.generate}
    return yaml.safe_dump(content, sort_keys=False)


def model_stage(shelf: Shelf, model: Published, root: Path, origin: str) -> Stage:
    """The stage that fetches and converts."""
    folder = root / model.name
    command = ["-m", "scripts.pretrained", "get", model.name, "--out", str(folder), "--from", origin]
    inputs = {"archive": model.archive, "from": origin}
    return Stage("model", folder, inputs, [[*command, "--models", str(shelf.file)]], replaces=True)


def score_stages(model: Published, root: Path, config: Path) -> list[Stage]:
    """The stages from the test set to its scores, of a model that has been fetched.

    Raises:
        UserError: its archive held no BPE codes.
    """
    dataset = load_dataset(model.dataset).only_test()
    folder, raw = root / "scores" / model.name, root / "test_sets" / dataset.name / "raw"
    trained = find_trained(root / model.name, dataset=model.dataset)
    codes = [str(trained.codes(language)) for language in dataset.languages]
    facts = dataset.facts("binarise")
    prepared, binarised, hypotheses = (folder / name for name in ("prepared", "binarised", "hypotheses"))
    stages = []

    def add(name: str, out: Path, inputs: dict[str, Any], before: tuple[str, ...], *command: object) -> None:
        words = ["-m", *map(str, command), "--out", str(out)]
        stages.append(Stage(name, out, inputs, [words], before, replaces=name in ("prepare", "binarise")))

    add("download", raw, {"files": facts["files"]}, (), "data_prep.download", model.dataset, "--test-only")
    prepare = ("data_prep.prepare", model.dataset, "--raw", raw, "--codes", *codes)
    add("prepare", prepared, facts, ("model", "download"), *prepare)
    binarise = ("data_prep.binarise", model.dataset, "--prepared", prepared, "--dictionaries", trained.dictionaries)
    add("binarise", binarised, {}, ("prepare",), *binarise)
    generate = ("scripts.generate", config, "--data", binarised, "--model", trained.model, "--prepared", prepared)
    add("generate", hypotheses, model.generate, ("binarise",), *generate)
    score = ("scripts.score", config, "--dataset", model.dataset, "--hypotheses", hypotheses, "--prepared", prepared)
    add("score", folder / "scores", {"measure": model.measure}, ("generate",), *score)
    return stages


def report(outcomes: Sequence[Outcome]) -> list[str]:
    """The outcomes as lines of a table, and each score's signature."""
    rows = [("model", "test set", "score", "paper", "ours", "difference", "tolerance", "verdict")]
    for each in outcomes:
        figure = "-" if each.model.figure is None else f"{each.model.figure:.1f}"
        ours = "-" if each.score is None else f"{each.score:.2f}"
        difference = "-" if each.difference is None else f"{each.difference:+.2f}"
        of = (each.model.name, each.model.tested_on, SCORES[each.model.measure])
        rows.append((*of, figure, ours, difference, f"±{each.tolerance}", each.verdict))
    return [*aligned(rows, left=3, rule=True), *(f"{o.model.name}: {o.signature}" for o in outcomes if o.signature)]


def _keep(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the outcomes to a file that keeps those of other models."""
    kept = read_json(path) if path.exists() else {}
    for each in outcomes:
        kept[each.model.name] = {
            "test_set": each.model.tested_on,
            "score": SCORES[each.model.measure],
            "paper": each.model.figure,
            "stands": each.model.stands,
            "ours": each.score,
            "difference": each.difference,
            "tolerance": each.tolerance,
            "verdict": each.verdict,
            "signature": each.signature,
        }
    write_json(path, kept)
