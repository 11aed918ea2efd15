"""The folders of a configuration's results, and the commands that make them.

work/<dataset>/{raw,prepared,binarised}     shared by all models of a dataset
work/<dataset>/<model>/seed<N>/{checkpoints,averaged or tuned,hypotheses,scores}
work/<dataset>/<model>/{selection,speed}, record.json
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.dataset import Dataset
from data_prep.stages import NAMES as DATA_STAGES
from data_prep.stages import data_stages
from scripts.common.errors import UserError
from scripts.common.files import read_json
from scripts.fairseq_io.commands import evaluate_command, generate_command, generation_settings, train_command
from scripts.fairseq_io.devices import Devices, find_devices
from scripts.pipeline.config import Config, load_config
from scripts.pipeline.pipeline import Pipeline, Stage
from scripts.pipeline.stamp import read_stamp

SEED_STAGES = ("train", "tune", "average", "generate", "score")  # done for each seed
MODEL_STAGES = ("select", "speed")
RESERVED = ("raw", "prepared", "binarised")  # folders of a dataset, which no model can be called
NAMES = (*DATA_STAGES, *SEED_STAGES, *MODEL_STAGES, "table")


def is_tuned(config: Config) -> bool:
    """Return True if models are judged on validation: something is to be tuned, or there are seeds to choose from.

    A language model without anything to tune is judged when it is evaluated.
    """
    return bool(config.tune) or (len(config.seeds) > 1 and config.metric != "perplexity")


def seed_root(model_root: Path, seed: int) -> Path:
    """The folder of a seed."""
    return model_root / f"seed{seed}"


def model_file(config: Config, root: Path) -> Path:
    """The model that a seed ends with, ``root`` being the seed's folder; without averaging the best checkpoint."""
    if not config.average:
        return root / "checkpoints" / "checkpoint_best.pt"
    return root / ("tuned" if is_tuned(config) else "averaged") / "model.pt"


def tuning_file(config: Config, root: Path) -> Path | None:
    """Return where tuning says what it chose for a seed; None where nothing is tuned."""
    return root / "tuned" / "tune.json" if is_tuned(config) else None


def baseline_config(config: Config) -> Config | None:
    """The configuration whose speed is measured beside this one's; None if there is none, or it is this one."""
    if "baseline" not in config.speed:
        return None
    path = config.path.parent / config.speed["baseline"]
    if path.resolve() == config.path.resolve():
        return None
    baseline = load_config(path, config.other_dataset)
    if baseline.dataset != config.dataset:
        raise UserError(
            f"{config.path}: `speed.baseline` is of the dataset {baseline.dataset}, expected one of {config.dataset}"
        )
    return baseline


@dataclass(frozen=True)
class Run(Pipeline):
    """All stages of one configuration that leave a folder behind."""

    config: Config
    dataset_root: Path
    model_root: Path

    @property
    def record(self) -> Path:
        """The run record."""
        return self.model_root / "record.json"

    def chosen(self, names: Iterable[str] = NAMES, seeds: Iterable[int] = ()) -> list[str]:
        """Return the keys of the stages with these names: those that serve all seeds, and those of these seeds."""
        wanted, of = set(names), {None, *seeds}
        return [key for key, stage in self.stages.items() if stage.name in wanted and stage.seed in of]

    def outdated(self, names: Iterable[str]) -> set[str]:
        """Return the keys of the stages that are not as the configuration is now, or build on one that is not.

        Stages before the first of these names are taken as they are.
        """
        first = min(map(NAMES.index, names))
        later = [key for key, stage in self.stages.items() if NAMES.index(stage.name) >= first]
        return {key for key, reason in self.to_do(later).items() if reason}

    def seeds_to_do(self, seeds: Iterable[int]) -> list[int]:
        """Return the seeds among these that are not done with all their stages, as the configuration is now."""
        return [seed for seed in seeds if any(map(self.stale_reason, self.chosen(SEED_STAGES, [seed])))]


@dataclass(frozen=True)
class Launch:
    """Options of the stage train beside the configuration: where it runs changes nothing about its result."""

    prefix: tuple[str, ...] = ()  # goes before the command: srun and its flags
    arguments: tuple[str, ...] = ()  # --devices, --nodes, --rendezvous, --precision
    find: Callable[..., Devices] = find_devices  # the devices of the first machine


def build_run(
    config: Config,
    dataset: Dataset,
    work: Path,
    raw: Path | None = None,
    given: Callable[[], str | None] = lambda: None,
    launch: Launch | None = None,
    untrained: bool = False,
) -> Run:
    """Lay out the folders and commands of a configuration; ``untrained``: only those of the speed of random weights.

    Raises:
        UserError: the model's name is taken by a folder of the data, or its baseline cannot be read; the speed of
            random weights is asked for where none is measured, or the model has been trained.
    """
    root, model = work / config.dataset, work / config.dataset / config.name
    binarised = root / "binarised"
    if config.name in RESERVED:
        raise UserError(
            f"{config.path}: a model cannot be called {config.name}, the data lie in that folder; rename the file"
        )

    stages = data_stages(dataset, root, raw=raw, given=given)
    if not untrained:
        for seed in config.seeds:
            stages += _seed_stages(config, seed, root, seed_root(model, seed), launch or Launch())
        scores = tuple(stage.key for stage in stages if stage.name == "score")
        select = ["-m", "scripts.reproduce.select", *config.arguments]
        select += ["--run", str(model), "--out", str(model / "selection")]
        stages.append(Stage("select", model / "selection", {"metric": config.metric}, [select], scores))
    elif not config.speed:
        raise UserError(f"{config.path} has no section `speed`, which is all that --untrained measures")
    elif read_stamp(model / "selection") is not None:
        raise UserError(f"{model} holds a trained model; leave --untrained out, and its own speed is measured")
    if config.speed:
        baseline = baseline_config(config)
        chosen = read_stamp(root / baseline.name / "selection") if baseline and not untrained else None
        inputs = {"speed": config.speed, "baseline": chosen.id if chosen else None}
        speed = ["-m", "scripts.speed", *config.arguments, "--run", str(model), "--data", str(binarised)]
        command = [*speed, "--out", str(model / "speed"), *(["--untrained"] if untrained else [])]
        stages.append(Stage("speed", model / "speed", inputs, [command], ("binarise" if untrained else "select",)))
    return Run({stage.key: stage for stage in stages}, config, root, model)


def _seed_stages(config: Config, seed: int, data: Path, root: Path, launch: Launch) -> list[Stage]:
    binarised, prepared = str(data / "binarised"), ["--prepared", data / "prepared"]
    checkpoints, model, tuned = root / "checkpoints", model_file(config, root), tuning_file(config, root)
    subsets = ["valid", "test"] if tuned or len(config.seeds) > 1 or config.metric == "perplexity" else ["test"]

    def script(name: str, *arguments: object) -> list[str]:
        return ["-m", f"scripts.{name}", *config.arguments, *map(str, arguments)]

    def trained() -> list[list[str]]:
        devices = launch.find(cpu_processes=config.cpu_processes)
        return [train_command(config, seed, data / "binarised", checkpoints, devices)]

    def generated() -> list[list[str]]:
        chosen = read_json(tuned)["chosen"] if tuned and tuned.exists() else {}
        settings, gpu = generation_settings(config, chosen), find_devices().gpu
        return [generate_command(config, settings, data / "binarised", model, "test", gpu=gpu)]

    def evaluated() -> list[list[str]]:
        gpu = find_devices().gpu
        return [evaluate_command(config, data / "binarised", model, subset, gpu=gpu) for subset in subsets]

    stages: list[Stage] = []

    def add(name: str, folder: Path, inputs: dict[str, Any], *commands: list[str], **more: Any) -> None:
        before = stages[-1].key if stages else "binarise"
        stages.append(Stage(name, folder, inputs, list(commands), (before,), seed, **more))

    train = script("train", "--seed", str(seed), "--data", binarised, "--out", checkpoints, *launch.arguments)
    where: dict[str, Any] = {"key_files": ("train.json",), "prefix": launch.prefix, "fairseq": trained}
    add("train", checkpoints, config.training(seed), train, **where)
    of_seed = ["--seed", str(seed), *(["--tuned", str(tuned)] if tuned else [])]
    if tuned:
        inputs = {"generate": config.generate, "average": config.average, "tune": config.tune, "metric": config.metric}
        of_model = ["--checkpoints", checkpoints, "--data", binarised, "--out", tuned.parent]
        of_model += prepared if config.metric != "perplexity" else []
        add("tune", tuned.parent, inputs, script("tune", "--seed", str(seed), *of_model))
    elif config.average:
        how = ["--last", str(config.average["last"]), "--by", config.average["by"], "--out", str(model)]
        average = ["-m", "scripts.average", "--checkpoints", str(checkpoints), *how]
        add("average", model.parent, config.average, average)
    given = ["--data", binarised, "--model", model, *of_seed]
    scores = root / "scores"
    if config.metric == "perplexity":
        commands = [script("evaluate", *given, "--subset", name, "--out", scores / name) for name in subsets]
        add("score", scores, {"score": config.score, "generate": config.generate}, *commands, fairseq=evaluated)
        return stages
    hypotheses = {"valid": root / "tuned" / "valid", "test": root / "hypotheses"}
    command = script("generate", *given, *prepared, "--subset", "test", "--out", hypotheses["test"])
    add("generate", hypotheses["test"], {"generate": config.generate}, command, fairseq=generated)
    commands = []
    for name in subsets:
        of_subset = ["--hypotheses", hypotheses[name], *prepared, "--subset", name]
        commands.append(script("score", *of_subset, "--out", scores / name))
    add("score", scores, config.score, *commands)
    return stages
