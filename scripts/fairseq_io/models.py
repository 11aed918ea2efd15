"""Flags, tasks and models as fairseq's own command line takes and makes them."""

import argparse
import logging
import shlex
import textwrap
import traceback
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
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
    """One of fairseq's commands, as a configuration has it run.

    ``keys`` has the configuration's key, such as tune.lenpen, of each flag that the configuration sets.
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
        """The command's name as people type it."""
        return "fairseq-" + self.module.removeprefix("fairseq_cli.").replace("_", "-")

    def given(self, flag: str) -> str:
        """The value of a flag in the command; "true" of one that has none."""
        found = (word.removeprefix("--").partition("=") for word in self.words)
        return {name: value or "true" for name, _, value in found}.get(flag, "left out")

    def refusal(self, flag: str, why: str) -> UserError:
        """The sentence that refuses the value of a flag."""
        own = f"{'train' if self.name == 'fairseq-train' else 'generate'}.{flag}"
        return UserError(f"{self.path}: `{self.keys.get(flag, own)}` is {self.given(flag)}, {why}")


def parse(command: Command) -> argparse.Namespace:
    """Parse the flags with fairseq's parser for the command. ``load_plugin`` comes first.

    Raises:
        UserError: the parser refuses them, in its own words.
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
    # neither which optional packages they would like, nor what they set, nor which backend runs
    for name in ("fairseq", "hydra", "lightconv_plugin"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=str(user_dir())))
    import lightconv_plugin.register  # noqa: F401  fairseq passes over a package of which a part is imported already


def stand_in_dictionary(size: int) -> Any:
    """A dictionary of so many types, which knows the special ones alone and is equal to no other."""
    from fairseq.data import Dictionary

    class StandIn(Dictionary):
        __eq__, __hash__ = object.__eq__, object.__hash__

        def __len__(self) -> int:
            return size

    return StandIn()


TYPES = 1_000_000  # of a dictionary whose size is not known yet: more than any cut-off of an adaptive layer


def make_task(cfg: Any, *, joined: bool, has_data: bool) -> Any:
    """Make a task as fairseq-train does; None of one that cannot be made without the data.

    Args:
        cfg: fairseq's configuration of the task.
        joined: both languages have one dictionary.
        has_data: ``cfg.data`` is there, and has the dictionaries.
    """
    from fairseq import tasks
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.language_modeling import LanguageModelingTask
    from fairseq.tasks.translation import TranslationTask

    if has_data:
        return tasks.setup_task(cfg)
    task, source = TASK_REGISTRY[getattr(cfg, "_name", None) or cfg.task], stand_in_dictionary(TYPES)
    if issubclass(task, TranslationTask):
        return task(cfg, source, source if joined else stand_in_dictionary(TYPES))
    return task(cfg, source) if issubclass(task, LanguageModelingTask) else None


def in_words(error: Exception) -> str:
    """Return what an error says in one line; of one that says nothing, the line of code that it comes from."""
    text = textwrap.shorten(str(error), 400)
    if isinstance(error, ValueError | RuntimeError) and text:
        return text
    where = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {text or (where[-1].line if where else '')}"


def training_arguments(flags: list[str]) -> Namespace:
    """Parse flags as fairseq-train does. ``load_plugin`` comes first for the architectures of the plugin."""
    return parse(Command(shlex.join(flags), ["fairseq_cli.train", "no-data", *flags], {}))


@dataclass(frozen=True)
class TaskAndModel:
    """Task and model as fairseq-train builds them from its arguments, as parsed and as omegaconf has them."""

    args: Namespace
    cfg: Any
    task: Any
    model: Any


def translation(arch: str, vocab_size: int, flags: list[str], *, task: str = "translation") -> TaskAndModel:
    """Build what ``fairseq-train --arch ARCH --task TASK FLAGS`` does, with ``vocab_size`` invented words.

    ``load_plugin`` comes first for the architectures of the plugin.
    """
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.tasks import TASK_REGISTRY

    given = ["--arch", arch, "--task", task, "--source-lang", "src", "--target-lang", "tgt", *flags]
    args = training_arguments(given)
    cfg = convert_namespace_to_omegaconf(args)
    words = Dictionary()
    for number in range(vocab_size - len(words)):
        words.add_symbol(f"w{number}")
    built = TASK_REGISTRY[task](cfg.task, words, words)
    return TaskAndModel(args, cfg, built, built.build_model(cfg.model))
