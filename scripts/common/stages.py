"""The stages of a run: what each is made from, whether it is done, and the commands that do it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.common.config import Config
from scripts.common.errors import UserError
from scripts.common.stamp import Stamp, fingerprint, missing_files, read_stamp

DATA_STAGES = ("download", "prepare", "binarise")
SEED_STAGES = ("train", "tune", "average", "generate", "score")  # done for each seed
MODEL_STAGES = ("select", "speed")
NAMES = (*DATA_STAGES, *SEED_STAGES, *MODEL_STAGES, "table")


@dataclass(frozen=True)
class Stage:
    """One stage, of one seed or of all. Each command is a script and its arguments."""

    name: str
    folder: Path
    inputs: dict[str, Any]  # what it is made from beside the stages before
    commands: list[list[str]]
    before: tuple[str, ...] = ()  # keys of the stages that it builds on
    seed: int | None = None
    # Which of its files must still be there for the stage to count as done; None: all. Checkpoints may be cleared away.
    key_files: tuple[str, ...] | None = None
    prefix: tuple[str, ...] = ()  # goes before each command: srun and its flags
    # the commands of fairseq that it comes down to, for people to read
    fairseq: Callable[[], list[list[str]]] = field(default=lambda: [], compare=False)

    @property
    def key(self) -> str:
        """Its name, with the seed if it is of one."""
        return self.name if self.seed is None else f"{self.name}:{self.seed}"

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.name if self.seed is None else f"{self.name} (seed {self.seed})"


@dataclass(frozen=True)
class Run:
    """All stages of one configuration that leave a folder behind, by key and in order."""

    config: Config
    dataset_root: Path
    model_root: Path
    stages: dict[str, Stage]
    given: Callable[[], str | None] = field(default=lambda: None)

    @property
    def record(self) -> Path:
        """The run record."""
        return self.model_root / "record.json"

    def chosen(self, names: Iterable[str], seeds: Iterable[int] | None = None) -> list[str]:
        """The keys of the stages with these names, of these seeds, or of none (None)."""
        wanted, of = set(names), set() if seeds is None else set(seeds)
        return [
            key
            for key, stage in self.stages.items()
            if stage.name in wanted and (stage.seed is None if seeds is None else stage.seed in of)
        ]

    def missing(self, key: str) -> list[str]:
        """The stages that a stage builds on and that are not complete, by their titles."""
        before = (self.stages[name] for name in self.stages[key].before)
        return [stage.title for stage in before if read_stamp(stage.folder) is None]

    def fingerprint(self, key: str) -> str:
        """What the stage would be made from now.

        Raises:
            UserError: a stage before it has not been completed.
        """
        stage, ids = self.stages[key], []
        for name in stage.before:
            before = self.stages[name]
            stamp = read_stamp(before.folder)
            if stamp is None:
                raise UserError(
                    f"the stage {stage.title} needs what the stage {before.title} makes, and {before.folder} is "
                    f"missing or incomplete; run scripts/reproduce.py {self.config.path} --to {before.name} first, "
                    "or leave --from out"
                )
            ids.append(stamp.id)
        before_it = ids if len(ids) > 1 else next(iter(ids), None)
        return fingerprint({"stage": stage.name, "inputs": stage.inputs, "before": before_it})

    def why_not_done(self, key: str) -> str | None:
        """Why a stage has to run, in words; None if it does not."""
        stage = self.stages[key]
        stamp = read_stamp(stage.folder)
        if stamp is None:
            return "not complete yet"
        if missing := self.missing(key):
            return f"the stage {missing[0]} is not complete"
        if stamp.fingerprint != self.fingerprint(key):
            return "its settings or inputs have changed"
        if not stage.before and (given := self.given()) is not None and given != stamp.given:
            return "the files given with --raw have changed"
        if gone := missing_files(stage.folder, stamp):
            return f"{gone[0]} is gone or has changed"
        return None


def completed(run: Run) -> dict[str, Stamp]:
    """The stamps of the stages that are complete, by key."""
    stamps = {key: read_stamp(stage.folder) for key, stage in run.stages.items()}
    return {key: stamp for key, stamp in stamps.items() if stamp is not None}


def seeds_to_do(run: Run, seeds: Iterable[int]) -> list[int]:
    """The seeds among these that are not done with all their stages, as the configuration is now."""
    return [seed for seed in seeds if any(map(run.why_not_done, run.chosen(SEED_STAGES, [seed])))]
