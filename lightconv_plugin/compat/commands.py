"""Changes to fairseq's commands: complete help, fewer warnings, and fixes for options of generation."""

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
    """Ignore FutureWarnings about fairseq's calls: they ask for changes to fairseq, which a user cannot make.

    The filter matches fairseq's modules, and those of ``compat``, through which some of its calls pass.
    """
    for module in (r"fairseq(_cli)?(\.|$)", r"lightconv_plugin\.compat\."):
        warnings.filterwarnings("ignore", category=FutureWarning, module=module)


def import_speech_quietly() -> None:
    """Keep fairseq from asking for a package of its speech tasks whenever it is imported."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def compose_quietly() -> None:
    """Ignore hydra's warnings about the way in which fairseq composes a configuration, since it works."""
    from fairseq.dataclass import utils

    @shim(utils, "initialize")
    def initialize(original: Original, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # hydra looks for files beside the module that calls it, which is three frames up because of the shim
            return original(*args, caller_stack_depth=3, **kwargs)

    @shim(utils, "compose")
    def compose(original: Original, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return original(*args, **kwargs)


def normalise_weights_quietly() -> None:
    """Ignore torch's advice to replace ``weight_norm``, which fairseq's convolutional models call."""
    from fairseq.models import fconv
    from torch import nn

    def weight_norm(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return nn.utils.weight_norm(*args, **kwargs)

    setattr(fconv, "nn", ModuleView(nn, utils=ModuleView(nn.utils, weight_norm=weight_norm)))  # noqa: B010


def pin_memory_for_gpus_alone() -> None:
    """Let fairseq's iterators use pinned memory only on a machine with a GPU, since torch warns on others."""
    from fairseq.data import iterators

    def data_loader(*args: Any, **kwargs: Any) -> Any:
        if not torch.accelerator.is_available():
            kwargs["pin_memory"] = False
        return torch.utils.data.DataLoader(*args, **kwargs)

    data = ModuleView(torch.utils.data, DataLoader=data_loader)
    setattr(iterators, "torch", ModuleView(torch, utils=ModuleView(torch.utils, data=data)))  # noqa: B010


def help_with_model_options() -> None:
    """List the options of ``--arch`` and ``--task`` in ``--help``, too.

    fairseq's parser prints its help and ends the process before it adds the options of the model.
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
    """Make ``--no-repeat-ngram-size`` work without fairseq's compiled extension.

    fairseq compares n-grams with the end of its buffer in place of the end of the hypothesis. The buffer has room for
    the longest hypothesis, so its end is padding, and nothing is blocked (fairseq's issues 4709 and 5206). With size 1
    it compares the whole buffer, and blocks nothing either.
    """
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    @shim(NGramRepeatBlock, "_no_repeat_ngram")
    def block(
        original: Original, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Any:
        if self.no_repeat_ngram_size == 1:
            # not the first token, which is often the end of sentence: this must stay allowed
            return lprobs.scatter_(1, tokens[:, 1 : step + 1], -math.inf)
        return original(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


def end_lines_at_line_feeds() -> None:
    """Let ``fairseq-interactive --input FILE`` end lines at line feeds only, and so print one answer for each line.

    fairseq's ``fileinput`` reads with universal newlines, which take a carriage return within a line for its end. On
    standard input, and in scripts.translate, a line ends at a line feed. The global ``fileinput`` is replaced when the
    command starts, in the module of its ``main``, since ``python -m`` gives that module another name.
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
