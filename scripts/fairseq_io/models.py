"""Parse flags, and build tasks and models, as fairseq's own commands do."""

import argparse
import logging
import shlex
import textwrap
import traceback
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from data_prep.common.errors import UserError
from scripts.fairseq_io.inputs import user_dir

PARSERS = {
    "fairseq_cli.train": "get_training_parser",
    "fairseq_cli.generate": "get_generation_parser",
    "fairseq_cli.eval_lm": "get_eval_lm_parser",
}


@dataclass(frozen=True)
class Command:
    """One of fairseq's commands with the flags of a configuration.

    ``keys`` maps each flag that the configuration sets to its key there, such as tune.lenpen.
    """

    path: Any
    words: list[str]
    keys: Mapping[str, str]

    @property
    def module(self) -> str:
        """fairseq's module, such as fairseq_cli.train."""
        return next(word for word in self.words if word in PARSERS)

    @property
    def name(self) -> str:
        """The command's name in a shell, such as fairseq-train."""
        return "fairseq-" + self.module.removeprefix("fairseq_cli.").replace("_", "-")

    def value(self, flag: str) -> str:
        """Return the value of a flag in the command, "true" for a bare flag, and "left out" for a missing one."""
        parts = (word.removeprefix("--").partition("=") for word in self.words)
        return {name: value or "true" for name, _, value in parts}.get(flag, "left out")

    def refusal(self, flag: str, why: str) -> UserError:
        """Return the error about the value of a flag, with the flag's key in the configuration."""
        default_key = f"{'train' if self.name == 'fairseq-train' else 'generate'}.{flag}"
        return UserError(f"{self.path}: `{self.keys.get(flag, default_key)}` is {self.value(flag)}, {why}")


def parse(command: Command) -> argparse.Namespace:
    """Parse the flags with fairseq's parser for the command. Call ``load_plugin`` before.

    Raises:
        UserError: the parser refuses them; the message is the parser's.
    """
    from fairseq import options

    parser = getattr(options, PARSERS[command.module])()

    def refuse(text: str) -> NoReturn:
        raise UserError(f"{command.path}: {command.name} refuses its flags: {textwrap.shorten(text, 240)}")

    parser.error = refuse
    flags = command.words[command.words.index(command.module) + 1 :]
    try:
        parsed: argparse.Namespace = options.parse_args_and_arch(parser, flags)
    except UserError:
        raise
    except Exception as error:  # fairseq evaluates lists as Python code
        raise UserError(f"{command.path}: {command.name} cannot take its flags: {error}") from error
    return parsed


def load_plugin() -> None:
    """Register the models as ``--user-dir`` does."""
    # hide messages about missing optional packages, their settings, and the backend in use
    for name in ("fairseq", "hydra", "lightconv_plugin"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=str(user_dir())))
    import lightconv_plugin.register  # noqa: F401  fairseq skips a package of which a module is imported already


def stand_in_dictionary(size: int) -> Any:
    """Return a dictionary with this number of entries. It holds only the special symbols and equals no other."""
    from fairseq.data import Dictionary

    class StandIn(Dictionary):
        __eq__, __hash__ = object.__eq__, object.__hash__

        def __len__(self) -> int:
            return size

    return StandIn()


ENTRIES = 1_000_000  # of a dictionary of unknown size: more than any cut-off of an adaptive layer


def make_task(cfg: Any, *, joined: bool, has_data: bool) -> Any:
    """Build a task as fairseq-train does; return None if it cannot be built without data.

    Args:
        cfg: fairseq's configuration of the task.
        joined: both languages share one dictionary.
        has_data: the folder ``cfg.data`` exists and has the dictionaries.
    """
    from fairseq import tasks
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.translation import TranslationTask

    if has_data:
        return tasks.setup_task(cfg)
    task, source = TASK_REGISTRY[getattr(cfg, "_name", None) or cfg.task], stand_in_dictionary(ENTRIES)
    if issubclass(task, TranslationTask):
        return task(cfg, source, source if joined else stand_in_dictionary(ENTRIES))
    return task(cfg, source) if issubclass(task, LanguageModelingTask) else None


def in_words(error: Exception) -> str:
    """Return an error's message in one line; without a message, the line of code that raised it."""
    text = textwrap.shorten(str(error), 400)
    if isinstance(error, ValueError | RuntimeError) and text:
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {text or (frames[-1].line if frames else '')}"


def training_arguments(flags: list[str]) -> Namespace:
    """Parse flags as fairseq-train does. Call ``load_plugin`` before, for the plugin's architectures."""
    return parse(Command(shlex.join(flags), ["fairseq_cli.train", "no-data", *flags], {}))


@dataclass(frozen=True)
class TaskAndModel:
    """Task and model as fairseq-train builds them, with its parsed arguments and their omegaconf version."""

    args: Namespace
    cfg: Any
    task: Any
    model: Any


def translation(arch: str, vocab_size: int, flags: list[str], *, task: str = "translation") -> TaskAndModel:
    """Build task and model of ``fairseq-train --arch ARCH --task TASK FLAGS`` with ``vocab_size`` invented words.

    Call ``load_plugin`` before, for the plugin's architectures.
    """
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.tasks import TASK_REGISTRY

    all_flags = ["--arch", arch, "--task", task, "--source-lang", "src", "--target-lang", "tgt", *flags]
    args = training_arguments(all_flags)
    cfg = convert_namespace_to_omegaconf(args)
    dictionary = Dictionary()
    for number in range(vocab_size - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    translation_task = TASK_REGISTRY[task](cfg.task, dictionary, dictionary)
    return TaskAndModel(args, cfg, translation_task, translation_task.build_model(cfg.model))


def load_trained(model: Path, dictionaries: Path) -> TaskAndModel:
    """Load a checkpoint with the task that it was trained with. Call ``load_plugin`` before."""
    from fairseq import checkpoint_utils

    overrides = {"data": str(dictionaries.resolve())}
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(model)], arg_overrides=overrides)
    return TaskAndModel(cfg.model, cfg, task, models[0])
