"""Models and tasks as fairseq's own command line makes them, for the commands that run no training of their own."""

import logging
import shlex
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from scripts.fairseq_io.inputs import user_dir
from scripts.fairseq_io.parsers import Command, parse


def load_plugin() -> None:
    """Register the models as ``--user-dir`` does."""
    for name in ("fairseq", "hydra"):  # neither which optional packages they would like nor what they set
        logging.getLogger(name).setLevel(logging.WARNING)
    # fairseq calls hydra and torch as their older versions wanted it
    warnings.filterwarnings("ignore", module="hydra")
    warnings.filterwarnings("ignore", message=r"\s*'config' is validated")
    warnings.filterwarnings("ignore", category=FutureWarning, module="fairseq")
    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=str(user_dir())))


@contextmanager
def without_memory() -> Iterator[None]:
    """Have models built on torch's meta device, fairseq's ConvTBC too, which takes no notice of it."""
    import torch
    from fairseq.modules import conv_tbc

    conv_tbc.torch = SimpleNamespace(**{**vars(torch), "Tensor": torch.empty})
    try:
        with torch.device("meta"):
            yield
    finally:
        conv_tbc.torch = torch


class NoWords(AttributeError):
    """The refusal of a stand-in that is asked for what only a real dictionary has."""


class StandInDictionary:
    """Stand-in for a dictionary: its size and the special symbols, without the words. Most models ask for no more."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getattr__(self, name: str) -> Any:
        if name in (special := ("bos", "pad", "eos", "unk")):
            return lambda: special.index(name)
        raise NoWords(f"a dictionary without words has no {name}")

    def __getitem__(self, number: int) -> str:
        raise NoWords(f"a dictionary without words has no word {number}")


@contextmanager
def stand_in_dictionaries(vocab_size: int, *, joined: bool) -> Iterator[None]:
    """Have tasks set up without data, each dictionary being of so many types; ``joined``: the same for both sides."""
    from fairseq.data import Dictionary

    one, load = StandInDictionary(vocab_size), Dictionary.__dict__["load"]
    Dictionary.load = classmethod(lambda *_, **__: one if joined else StandInDictionary(vocab_size))
    try:
        yield
    finally:
        Dictionary.load = load


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
