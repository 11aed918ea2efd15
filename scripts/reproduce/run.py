"""A configuration's stages, the folders of their results, and the record of its scores and how they were made.

work/<dataset>/{raw,prepared,binarised}     shared by all models of a dataset
work/<dataset>/<model>/seed<N>/{checkpoints,averaged or tuned,hypotheses,scores}
work/<dataset>/<model>/{selection,speed}, record.json
"""

import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_prep.common.errors import UserError
from data_prep.common.files import read_json, write_json
from data_prep.common.pipeline import Pipeline, Stage, digest_data, fingerprint, read_stamp
from data_prep.common.provenance import git_state, machine, versions
from data_prep.common.terminal import aligned
from data_prep.dataset import load_dataset
from data_prep.stages import NAMES as DATA_STAGES
from data_prep.stages import data_stages
from scripts.config import Config, load_config
from scripts.fairseq_io.commands import evaluate_command, generate_command, generation_settings, shell, train_command
from scripts.fairseq_io.devices import find_devices
from scripts.scoring.selection import numbers, summarise

SEED_STAGES = ("train", "tune", "average", "generate", "score")  # run for each seed
MODEL_STAGES = ("select", "speed")
RESERVED = ("raw", "prepared", "binarised")  # folders of a dataset: no model can have these names
NAMES = (*DATA_STAGES, *SEED_STAGES, *MODEL_STAGES, "table")


def is_tuned(config: Config) -> bool:
    """Return True if the stage `tune` is needed: there are settings to tune, or seeds to choose from.

    A language model without settings to tune gets its validation score in the stage `score`.
    """
    return bool(config.tune) or (len(config.seeds) > 1 and config.metric != "perplexity")


def seed_root(model_root: Path, seed: int) -> Path:
    """Return the folder of a seed."""
    return model_root / f"seed{seed}"


def model_file(config: Config, root: Path) -> Path:
    """Return the final model of the seed in the folder ``root``; without averaging this is the best checkpoint."""
    if not config.average:
        return root / "checkpoints" / "checkpoint_best.pt"
    return root / ("tuned" if is_tuned(config) else "averaged") / "model.pt"


def tuned_settings(config: Config, root: Path) -> dict[str, Any]:
    """Return the settings that tuning chose for a seed; empty without tuning, or before it."""
    return read_json(root / "tuned" / "tune.json", {"chosen": {}})["chosen"] if is_tuned(config) else {}


def baseline_config(config: Config) -> Config | None:
    """Return the configuration whose speed is the baseline of this one's; None without one, or if it is this one."""
    if "baseline" not in config.speed:
        return None
    path = config.path.parent / config.speed["baseline"]
    return None if path.resolve() == config.path.resolve() else load_config(path, config.other_dataset)


def seed_facts(root: Path, completed: Collection[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a seed's stages; None for each stage that has not been completed.

    Args:
        root: the seed's folder.
        completed: names of the completed stages.
        settings: a diverged training counts if it had these settings and the present binarised text.
    """

    def facts(stage: str, name: str) -> Any:
        path = root / name
        return read_json(path) if stage in completed and path.exists() else None

    training, diverged = facts("train", "checkpoints/train.json"), root / "checkpoints" / "diverged.json"
    if training is None and diverged.exists():
        failure, identity = read_json(diverged), settings | {"data": digest_data(root.parents[1] / "binarised")}
        training = {"diverged": failure["update"]} if failure.get("of") == fingerprint(identity) else None
    tuning = facts("tune", "tuned/tune.json")
    return {
        "training": training,
        "tuned": tuning and tuning["chosen"],
        "valid": facts("score", "scores/valid/scores.json"),
        "generation": facts("generate", "hypotheses/generation.json"),
        "test": facts("score", "scores/test/scores.json"),
    }


@dataclass(frozen=True)
class Run(Pipeline):
    """All stages of one configuration that write a folder."""

    config: Config
    dataset_root: Path
    model_root: Path

    @property
    def record(self) -> Path:
        """The run record."""
        return self.model_root / "record.json"

    def chosen(self, names: Iterable[str] = NAMES, seeds: Iterable[int] = ()) -> list[str]:
        """Return the keys of the stages with these names: those that all seeds share, and those of ``seeds``."""
        names, seeds_or_shared = set(names), {None, *seeds}
        return [key for key, stage in self.stages.items() if stage.name in names and stage.seed in seeds_or_shared]

    def write_record(self, first: str) -> dict[str, Any]:
        """Write and return the run record: the results of the completed stages that have the configuration's settings.

        The results of stages before ``first`` count in any case.
        """
        checked = [key for key, stage in self.stages.items() if NAMES.index(stage.name) >= NAMES.index(first)]
        outdated = self.to_do(checked)
        completed = {key: stamp for key, stamp in self.completed().items() if not outdated.get(key)}
        of_seeds = {}
        for seed in self.config.seeds:
            stage_names = {self.stages[key].name for key in completed if self.stages[key].seed == seed}
            results = seed_facts(seed_root(self.model_root, seed), stage_names, self.config.training(seed))
            if f"train:{seed}" in self.stages and any(results.values()):
                of_seeds[seed] = results
        trainings: list[dict[str, Any]] = [facts["training"] or {} for facts in of_seeds.values()]
        trained = next((training for training in trainings if "parameters" in training), {})
        record = {
            "model": self.config.name,
            "dataset": self.config.dataset_name,
            "config": self.config.merged(),
            **{key: trained.get(key) for key in ("parameters", "backend", "precision", "precision_reason")},
            "seeds": {str(seed): {**facts, "valid": numbers(facts["valid"] or {})} for seed, facts in of_seeds.items()},
            **summarise(self.config.metric, of_seeds),
            "speed": read_json(self.stages["speed"].folder / "speed.json") if "speed" in completed else None,
            "stages": {
                key: {name: getattr(stamp, name) for name in ("seconds", "finished", "git", "fingerprint")}
                for key, stamp in completed.items()
            },
        }
        previous = read_json(self.record, {})
        if all(previous.get(key) == record[key] for key in ("stages", "seeds")):  # no stage has run since
            record |= {key: previous[key] for key in ("versions", "git", "machine")}
        else:
            record |= {"versions": versions(), "git": git_state(), "machine": machine()}
        write_json(self.record, record)
        return record

    def show_to_do(self, names: Collection[str], seeds: Collection[int]) -> str:
        """Return a line for each stage with its state and folder, then the commands of the stages that would run."""
        reasons = [(self.stages[key], reason) for key, reason in self.to_do(self.chosen(seeds=seeds)).items()]
        states = [
            [f"# {stage.title}", f"to do: {reason}" if reason else "done", str(stage.folder)]
            for stage, reason in reasons
        ]
        blocks = [_commands(stage) for stage, reason in reasons if reason and stage.name in names]
        return "\n\n".join(["\n".join(aligned(states, left=3)), *blocks])

    def show_whole(self, names: Collection[str], seeds: Collection[int]) -> str:
        """Return the merged configuration and the commands of all stages, completed or not."""
        merged = {key: value for key, value in self.config.merged().items() if value not in ({}, None)}
        text = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True)
        header = [f"# {self.config.path}, merged with what it builds on", *(f"# {line}" for line in text.splitlines())]
        blocks = ["\n".join(header), *(_commands(self.stages[key]) for key in self.chosen(names, seeds))]
        if "table" in names:
            blocks.append(f"# table\n{shlex.join(['python', '-m', 'scripts.table', str(self.record)])}")
        return "\n\n".join(blocks)


def _commands(stage: Stage) -> str:
    """Return a stage's title, its commands, and as comments the fairseq commands that these run."""
    lines = [f"# {stage.title}", *(shlex.join(["python", *command]) for command in stage.commands)]
    for command in stage.fairseq():
        lines += [f"# {line}" for line in ("which runs:", *shell(command).split("\n"))]
    return "\n".join(lines)


def build_run(
    config: Config, work: Path, raw: Path | None = None, *, devices: int | None = None, precision: str | None = None
) -> Run:
    """Return the stages of a configuration with their folders and commands.

    Args:
        config: the configuration.
        work: the folder of all results.
        raw: a folder to take the raw text from instead of downloading it.
        devices: number of GPUs or CPU processes to train on; None for the default.
        precision: replaces the configuration's precision.

    Raises:
        UserError: the model has the name of a folder of the data, or its baseline cannot be read.
    """
    root, dataset = work / config.dataset_name, load_dataset(config.dataset)
    model = root / config.name
    if config.name in RESERVED:
        raise UserError(
            f"{config.path}: a model cannot be called {config.name}, which is a folder of the dataset; rename the file"
        )

    stages, options = data_stages(dataset, root, raw=raw), {"devices": devices, "precision": precision}
    for seed in config.seeds:
        stages += _seed_stages(config, seed, root, seed_root(model, seed), options)
    where, scores = ["--run", str(model)], tuple(stage.key for stage in stages if stage.name == "score")
    select = ["-m", "scripts.reproduce.select", *config.arguments, *where, "--out", str(model / "selection")]
    stages.append(Stage("select", model / "selection", {"metric": config.metric}, [select], scores))
    if config.speed:
        baseline = baseline_config(config)
        chosen = read_stamp(root / baseline.name / "selection") if baseline else None
        inputs = {"speed": config.speed, "baseline": chosen.id if chosen else None}
        speed = ["-m", "scripts.speed", *config.arguments, *where, "--data", str(root / "binarised")]
        speed += ["--prepared", str(root / "prepared")]
        stages.append(Stage("speed", model / "speed", inputs, [[*speed, "--out", str(model / "speed")]], ("select",)))
    return Run({stage.key: stage for stage in stages}, config, root, model)


def _seed_stages(config: Config, seed: int, data: Path, root: Path, options: dict[str, Any]) -> list[Stage]:
    binarised, prepared, checkpoints = data / "binarised", ["--prepared", data / "prepared"], root / "checkpoints"
    model, tuned = model_file(config, root), root / "tuned" / "tune.json" if is_tuned(config) else None
    subsets = ["valid", "test"] if tuned or len(config.seeds) > 1 or config.metric == "perplexity" else ["test"]
    scores, stages = root / "scores", list[Stage]()

    def add(name: str, folder: Path, inputs: dict[str, Any], *commands: list[Any], **more: Any) -> None:
        previous = stages[-1].key if stages else "binarise"
        lines = [["-m", f"scripts.{script}", *map(str, arguments)] for script, *arguments in commands]
        stages.append(Stage(name, folder, inputs, lines, (previous,), seed, **more))

    def trained() -> list[list[str]]:
        devices = find_devices(options["devices"], cpu_processes=config.cpu_processes)
        return [train_command(config, seed, binarised, checkpoints, devices)]

    def generated() -> list[list[str]]:
        settings, gpu = generation_settings(config, tuned_settings(config, root)), find_devices().gpu
        return [generate_command(config, settings, binarised, model, "test", gpu=gpu)]

    def evaluated() -> list[list[str]]:
        gpu = find_devices().gpu
        return [evaluate_command(config, binarised, model, subset, gpu=gpu) for subset in subsets]

    config_words = config.arguments
    train = ["train", *config_words, "--seed", seed, "--data", binarised, "--out", checkpoints]
    train += [f"--{name}={value}" for name, value in options.items() if value is not None]
    add("train", checkpoints, config.training(seed), train, key_files=("train.json",), fairseq=trained)
    if tuned:
        inputs = {"generate": config.generate, "average": config.average, "tune": config.tune, "metric": config.metric}
        tune = ["tune", *config_words, "--seed", seed, "--checkpoints", checkpoints, "--data", binarised]
        tune += ["--out", tuned.parent]
        add("tune", tuned.parent, inputs, tune + (prepared if config.metric != "perplexity" else []))
    elif config.average:
        choice = ["--last", config.average["last"], "--by", config.average["by"], "--out", model]
        add("average", model.parent, config.average, ["average", "--checkpoints", checkpoints, *choice])
    tested = [
        *config_words,
        "--data",
        binarised,
        "--model",
        model,
        "--seed",
        seed,
        *(["--tuned", tuned] if tuned else []),
    ]
    if config.metric == "perplexity":
        lines = [["evaluate", *tested, "--subset", name, "--out", scores / name] for name in subsets]
        add("score", scores, {"score": config.score, "generate": config.generate}, *lines, fairseq=evaluated)
        return stages
    hypotheses = {"valid": root / "tuned" / "valid", "test": root / "hypotheses"}
    generate = ["generate", *tested, *prepared, "--subset", "test", "--out", hypotheses["test"]]
    add("generate", hypotheses["test"], {"generate": config.generate}, generate, fairseq=generated)
    lines = [
        ["score", *config_words, "--hypotheses", hypotheses[name], *prepared, "--subset", name, "--out", scores / name]
        for name in subsets
    ]
    add("score", scores, config.score, *lines)
    return stages
