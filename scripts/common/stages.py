"""The stages of a run: what each is made from, where it puts its results, and the command that does it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common.config import Config
from scripts.common.errors import UserError
from scripts.common.stamp import Stamp, fingerprint, missing_files, read_stamp

DATA_STAGES = ("download", "prepare", "binarise")
NAMES = (*DATA_STAGES, "train", "average", "generate", "score", "table")


@dataclass(frozen=True)
class Stage:
    """One stage. ``inputs``: what it is made from beside the stage before. ``command``: a script and its arguments."""

    name: str
    folder: Path
    inputs: dict[str, Any]
    command: list[str]
    # Which of its files must still be there for the stage to count as done; None: all. Checkpoints may be cleared away.
    key_files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Run:
    """All stages of one configuration that leave a folder behind, in order."""

    config: Config
    dataset_root: Path
    model_root: Path
    stages: dict[str, Stage]
    given: Callable[[], str | None] = field(default=lambda: None)

    @property
    def record(self) -> Path:
        """The run record."""
        return self.model_root / "record.json"

    def before(self, name: str) -> Stage | None:
        """The stage that a stage builds on."""
        names = list(self.stages)
        place = names.index(name)
        return self.stages[names[place - 1]] if place else None

    def fingerprint(self, name: str) -> str:
        """What the stage would be made from now.

        Raises:
            UserError: the stage before it has not been completed.
        """
        before = self.before(name)
        stamp = read_stamp(before.folder) if before else None
        if before and stamp is None:
            raise UserError(
                f"the stage {name} needs what the stage {before.name} makes, and {before.folder} is missing or "
                f"incomplete; run scripts/reproduce.py {self.config.path} --to {before.name} first, or leave --from out"
            )
        return fingerprint({"stage": name, "inputs": self.stages[name].inputs, "before": stamp.id if stamp else None})

    def why_not_done(self, name: str) -> str | None:
        """Why a stage has to run, in words; None if it does not."""
        stage, before = self.stages[name], self.before(name)
        stamp = read_stamp(stage.folder)
        if stamp is None:
            return "not complete yet"
        if before and read_stamp(before.folder) is None:
            return f"the stage {before.name} is not complete"
        if stamp.fingerprint != self.fingerprint(name):
            return "its settings or inputs have changed"
        if before is None and (given := self.given()) is not None and given != stamp.given:
            return "the files given with --raw have changed"
        if gone := missing_files(stage.folder, stamp):
            return f"{gone[0]} is gone or has changed"
        return None


def completed(run: Run) -> dict[str, Stamp]:
    """The stamps of the stages that are complete, by name."""
    stamps = {name: read_stamp(stage.folder) for name, stage in run.stages.items()}
    return {name: stamp for name, stamp in stamps.items() if stamp is not None}


def build_run(
    config: Config,
    dataset: dict[str, Any],
    work: Path,
    checkout: Path,
    raw: Path | None,
    given: Callable[[], str | None],
) -> Run:
    """Lay out the folders and commands of a configuration.

    Raises:
        UserError: the model's name is taken by a folder of the data.
    """
    root, model = work / config.dataset, work / config.dataset / config.name
    folders = {"download": root / "raw", "prepare": root / "prepared", "binarise": root / "binarised"}
    if model in folders.values():
        raise UserError(
            f"{config.path}: a model cannot be called {config.name}, the data lie in that folder; rename the file"
        )
    folders |= {"train": model / "checkpoints", "average": model / "averaged"}
    folders |= {"generate": model / "hypotheses", "score": model / "scores"}

    where = {name: str(folder) for name, folder in folders.items()}
    path = str(config.path)
    averaged = bool(config.average)
    model_file = f"{where['average']}/model.pt" if averaged else f"{where['train']}/checkpoint_best.pt"

    def data_prep(name: str, *arguments: str) -> list[str]:
        return [str(checkout / "data_prep" / f"{name}.py"), config.dataset, *arguments, "--out", where[name]]

    def script(name: str, *arguments: str) -> list[str]:
        return [str(checkout / "scripts" / f"{name}.py"), *arguments]

    inputs_of_data = {"dataset": dataset}
    last = ["--last", str(config.average.get("last")), "--by", str(config.average.get("by"))]
    stages = [
        Stage(
            "download",
            folders["download"],
            inputs_of_data,
            data_prep("download", *(["--raw", str(raw)] if raw else [])),
        ),
        Stage("prepare", folders["prepare"], inputs_of_data, data_prep("prepare", "--raw", where["download"])),
        Stage("binarise", folders["binarise"], inputs_of_data, data_prep("binarise", "--prepared", where["prepare"])),
        Stage(
            "train",
            folders["train"],
            {"train": config.train, "seed": config.seed},
            script("train", path, "--data", where["binarise"], "--out", where["train"]),
            key_files=("train.json",),
        ),
        Stage(
            "average",
            folders["average"],
            config.average,
            script("average", "--checkpoints", where["train"], "--out", model_file, *last),
        ),
        Stage(
            "generate",
            folders["generate"],
            {"generate": config.generate, "seed": config.seed},
            script("generate", path, "--data", where["binarise"], "--model", model_file, "--out", where["generate"]),
        ),
        Stage(
            "score",
            folders["score"],
            config.score,
            script(
                "score",
                path,
                "--hypotheses",
                where["generate"],
                "--prepared",
                where["prepare"],
                "--out",
                where["score"],
            ),
        ),
    ]
    kept = {stage.name: stage for stage in stages if averaged or stage.name != "average"}
    return Run(config=config, dataset_root=root, model_root=model, stages=kept, given=given)
