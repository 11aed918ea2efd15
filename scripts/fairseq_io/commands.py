"""Build fairseq's commands from a configuration, to run them and to show them to people."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.process import python_module
from data_prep.dataset import load_dataset
from scripts.config import BEST, Config, flags
from scripts.fairseq_io.devices import Devices, batch_per_device, launcher
from scripts.fairseq_io.inputs import user_dir
from scripts.fairseq_io.precision import (
    PrecisionChoice,
    matmul_precision,
    take_search_precision,
    take_training_precision,
)
from scripts.scoring.detokenise import SAME_UNITS

BEAM = 5  # fairseq-generate's default
LINES_OF_PROGRESS = 80  # in the log of a whole training, unless the configuration gives log-interval
WHOLE = {"required-batch-size-multiple": 1}  # with more, fairseq leaves out the last sentences of a subset
# by fairseq's names, the plugin's tasks and losses that give the same results in less time
FASTER_TASKS = {"translation": "pla_translation"}
FASTER_CRITERIONS = {"label_smoothed_cross_entropy": "pla_label_smoothed_cross_entropy"}
# a language model must be evaluated with these settings of its training; fairseq-eval-lm has other defaults
LM_TASK = ("sample-break-mode", "tokens-per-sample", "add-bos-token")
# fairseq-generate has limits of its own, and refuses lines that exceed them or those of the model
POSITIONS: tuple[str, ...] = ("max-source-positions", "max-target-positions")
# settings that decide the speed of generation; when it is measured, the section `speed` has them
SPEED = ("beam", "batch-size")
_NOT_TIMED = (*SPEED, "max-tokens")
PRECISION = "precision"  # a setting of generation that is not a flag of fairseq


def train_command(config: Config, seed: int, data: Path, out: Path, devices: Devices) -> list[str]:
    """Return the command that runs fairseq-train on all devices.

    Raises:
        UserError: there are more devices than tokens in an update.
    """
    max_update = config.train.get("max-update")
    interval = max(1, max_update // LINES_OF_PROGRESS) if max_update else 100
    precision = take_training_precision(config, devices).precision
    section = {**config.train, **_languages(config), **_precision_flag(precision, gpu=devices.gpu)}
    if (criterion := section.get("criterion")) in FASTER_CRITERIONS:
        section["criterion"] = FASTER_CRITERIONS[criterion]
    if config.batch:
        section |= batch_per_device(config.batch, devices.total)
    return [
        *matmul_precision(precision, gpu=devices.gpu),
        *launcher(devices),
        "-m",
        "fairseq_cli.train",
        str(data.resolve()),
        f"--user-dir={user_dir()}",
        f"--save-dir={out.resolve()}",
        f"--seed={seed}",
        "--log-format=json",
        *flags({"log-interval": interval} | section),
        # without this flag fairseq counts only the GPUs of this machine: of several machines with one GPU each, every
        # one would train by itself
        f"--distributed-world-size={devices.total}" if devices.gpu else "--cpu",
        # not tested on several GPUs
        *(["--cuda-graphs"] if devices.gpu and devices.total == 1 else []),
    ]


def _precision_flag(precision: str, *, gpu: bool) -> dict[str, bool]:
    return {precision: True} if gpu and precision != "fp32" else {}


def _languages(config: Config) -> dict[str, str]:
    """Return flags with the languages if fairseq would misread them: to it ``dict.pt-BR.txt`` is the pair pt and BR."""
    try:
        languages = load_dataset(config.dataset).languages
    except UserError:  # data that were binarised elsewhere
        return {}
    if len(languages) < 2 or not any("-" in language for language in languages):
        return {}
    return dict(zip(("source-lang", "target-lang"), languages, strict=True))


def generation_settings(config: Config, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return fairseq-generate's flags, with the values that tuning has ``chosen`` in place of the configuration's.

    Flags that are null and the key ``last`` of ``chosen`` are left out. ``precision``, which is not a flag of fairseq,
    stays.
    """
    settings = config.generate | {key: value for key, value in chosen.items() if key != "last"}
    return {key: value for key, value in settings.items() if value is not None}


def speed_settings(config: Config, chosen: Mapping[str, Any], speed: Mapping[str, Any]) -> dict[str, Any]:
    """Return fairseq-generate's flags with beam and batch size from a section ``speed``, without max-tokens."""
    others = {key: value for key, value in generation_settings(config, chosen).items() if key not in _NOT_TIMED}
    return others | {key: speed[key] for key in SPEED}


def averaged(config: Config, chosen: Mapping[str, Any]) -> str:
    """Return the number of averaged checkpoints, such as "3 by update"; "no" if the model is the best checkpoint."""
    last = chosen.get("last", config.average.get("last", BEST))
    return "no" if last == BEST else f"{last} by {config.average['by']}"


def generate_command(
    config: Config,
    settings: Mapping[str, Any],
    data: Path,
    model: Path,
    subset: str,
    *,
    gpu: bool,
) -> list[str]:
    """Return the command that runs fairseq-generate with the flags ``settings``, in the precision that they name.

    Raises:
        UserError: this precision is not available for a search here.
    """
    task = config.train.get("task", "translation")
    positions = {key: config.train[key] for key in POSITIONS if key in config.train}
    flags = {key: value for key, value in settings.items() if key != PRECISION}
    section = {**WHOLE, "task": FASTER_TASKS.get(task, task), **_languages(config), **positions, **flags}
    precision = search_precision(config, settings, gpu=gpu).precision
    return _model_command("fairseq_cli.generate", section, data, model, subset, gpu=gpu, precision=precision)


def search_precision(config: Config, settings: Mapping[str, Any], *, gpu: bool) -> PrecisionChoice:
    """Return the precision of a search with the flags ``settings``; see ``take_search_precision``."""
    return take_search_precision(settings.get(PRECISION, "fp32"), config.train, gpu=gpu)


def noted_settings(config: Config, settings: Mapping[str, Any], *, gpu: bool) -> dict[str, Any]:
    """Return the settings of a search for a record, with the precision that is used and the reason for it."""
    taken = search_precision(config, settings, gpu=gpu)
    return {**settings, PRECISION: taken.precision, "precision_reason": taken.reason}


def units(config: Config) -> str | None:
    """Return the kind of subwords of a language model, as fairseq's --post-process names it; None for whole words.

    The dataset's steps determine it; for a dataset without steps, ``generate.post-process`` names it.
    """
    dataset, post_process = load_dataset(config.dataset), config.generate.get("post-process")
    return dataset.units if dataset.steps else SAME_UNITS.get(post_process, post_process)


def evaluate_command(config: Config, data: Path, model: Path, subset: str, *, gpu: bool) -> list[str]:
    """Return the command that runs fairseq-eval-lm and prints each subword's probability.

    ``scoring.perplexity`` joins subwords to words. fairseq-eval-lm's own --post-process can only do so for "@@ ": it
    takes every other value for the ending of a subword.
    """
    task = {key: config.train[key] for key in LM_TASK if key in config.train}
    section = WHOLE | task | config.generate | {"post-process": None, PRECISION: None, "output-word-probs": True}
    return _model_command("fairseq_cli.eval_lm", section, data, model, subset, gpu=gpu, precision="fp32")


def _model_command(
    module: str, section: Mapping[str, Any], data: Path, model: Path, subset: str, *, gpu: bool, precision: str
) -> list[str]:
    """Return a command of fairseq that runs a model on a subset."""
    return [
        *matmul_precision(precision, gpu=gpu),
        *python_module(module),
        str(data.resolve()),
        f"--user-dir={user_dir()}",
        f"--path={model.resolve()}",
        f"--gen-subset={subset}",
        "--log-format=none",
        *flags({**section, **_precision_flag(precision, gpu=gpu)}),
        *([] if gpu else ["--cpu"]),
    ]


def shell(command: Sequence[str]) -> str:
    """Return a command as people type it, with the names that pip installs; a long one has one argument per line."""
    words = list(command)
    variables, words = (words[1:2], words[2:]) if words[:1] == ["env"] else ([], words)
    start = [sys.executable, "-P"]
    if words[:4] == [*start, "-m", "torch.distributed.run"]:
        words[:4] = ["torchrun"]
    elif words[:3] == [*start, "-m"]:
        words[:4] = ["fairseq-" + words[3].removeprefix("fairseq_cli.").replace("_", "-")]
    words = [*variables, *words]
    text = shlex.join(words)
    if len(text) <= 120:
        return text
    first = len(variables) + 2
    return " \\\n  ".join([shlex.join(words[:first]), *map(shlex.quote, words[first:])])
