"""Changes of fairseq's commands: complete help, fewer warnings, and options of generation that fail without them."""

from __future__ import annotations

import fileinput
import logging
import math
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.compat.shim import ModuleView, Original, shim


def ignore_deprecations() -> None:
    """Ignore FutureWarnings of fairseq's calls: they ask for changes of fairseq, which a user cannot make.

    The filter matches fairseq's modules, and ours, which pass its calls on.
    """
    for module in (r"fairseq(_cli)?(\.|$)", r"lightconv_plugin\.compat\."):
        warnings.filterwarnings("ignore", category=FutureWarning, module=module)


def import_speech_quietly() -> None:
    """Keep fairseq from asking for a package of its speech tasks whenever it is imported."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def compose_quietly() -> None:
    """Ignore hydra's warnings of the way in which fairseq composes a configuration, which works."""
    from fairseq.dataclass import utils

    @shim(utils, "initialize")
    def initialize(original: Original, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # hydra looks for files beside the module that calls it: three frames up, with the two of the shim
            return original(*args, caller_stack_depth=3, **kwargs)

    @shim(utils, "compose")
    def compose(original: Original, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return original(*args, **kwargs)


def normalise_weights_quietly() -> None:
    """Ignore torch's advice to fairseq's convolutional models to normalise their weights by another function."""
    from fairseq.models import fconv
    from torch import nn

    def weight_norm(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return nn.utils.weight_norm(*args, **kwargs)

    setattr(fconv, "nn", ModuleView(nn, utils=ModuleView(nn.utils, weight_norm=weight_norm)))  # noqa: B010


def pin_memory_for_gpus_alone() -> None:
    """Have fairseq's iterators ask for pinned memory only on a machine with a GPU; torch warns elsewhere."""
    from fairseq.data import iterators

    def data_loader(*args: Any, **kwargs: Any) -> Any:
        if not torch.accelerator.is_available():
            kwargs["pin_memory"] = False
        return torch.utils.data.DataLoader(*args, **kwargs)

    data = ModuleView(torch.utils.data, DataLoader=data_loader)
    setattr(iterators, "torch", ModuleView(torch, utils=ModuleView(torch.utils, data=data)))  # noqa: B010


def help_with_model_options() -> None:
    """List the options of ``--arch`` and ``--task`` in ``--help``, too.

    fairseq's parser prints its help and ends before it has read which model is meant.
    """
    from fairseq import options

    @shim(options, "parse_args_and_arch")
    def parse_with_help(original: Original, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        words = sys.argv[1:] if input_args is None else list(input_args)
        without_help = [word for word in words if word not in ("-h", "--help")]

        def print_help(*_: Any) -> None:
            parser.print_help()
            parser.exit()

        if len(without_help) < len(words):
            # fairseq calls parse_args when it has added all options
            input_args, parser.parse_args = without_help, print_help
        return original(parser, input_args, *args, **kwargs)


def block_ngrams_within_hypotheses() -> None:
    """Have ``--no-repeat-ngram-size`` look at the tokens of the hypothesis, without fairseq's compiled extension.

    fairseq compares the end of its buffer, which is padding until the longest hypothesis, and so blocks nothing (its
    issues 4709 and 5206). With size 1 it compares the whole hypothesis, and blocks nothing either.
    """
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    @shim(NGramRepeatBlock, "_no_repeat_ngram")
    def block(
        original: Original, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Any:
        if self.no_repeat_ngram_size == 1:
            # the first token starts the hypothesis, often with the end of sentence, which stays allowed
            return lprobs.scatter_(1, tokens[:, 1 : step + 1], -math.inf)
        return original(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


def end_lines_at_line_feeds() -> None:
    """Have ``fairseq-interactive --input FILE`` answer as many lines as there are line feeds.

    fairseq has ``fileinput`` read with universal newlines, and so takes a carriage return within a line for its end.
    From standard input, and in scripts.translate, a line ends at a line feed. The global ``fileinput`` of the command's
    own module is replaced when the command starts: ``python -m`` gives that module another name.
    """
    from fairseq.distributed import utils

    def open_hook(encoding: str, errors: str | None = None) -> Any:
        return lambda name, mode: open(name, mode, encoding=encoding, errors=errors, newline="\n")

    @shim(utils, "call_main")
    def call_main(original: Original, cfg: Any, main: Any, **kwargs: Any) -> Any:
        variables = getattr(main, "__globals__", {})
        if "buffered_read" in variables and variables.get("fileinput") is fileinput:
            variables["fileinput"] = ModuleView(fileinput, hook_encoded=open_hook)
        return original(cfg, main, **kwargs)
