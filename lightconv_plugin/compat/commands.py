"""Shims of fairseq's commands: complete help, and options of generation that fail without them."""

from __future__ import annotations

import fileinput
import logging
import math
import sys
import warnings
from typing import Any

from torch import Tensor

from lightconv_plugin.compat.shim import Original, shim


def leave_out_what_says_nothing() -> None:
    """All versions: hydra and torch warn in twenty lines a command of how fairseq calls them, which works."""
    logging.getLogger("hydra").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="hydra")
    warnings.filterwarnings("ignore", message=r"\s*'config' is validated")
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true but no accelerator")
    for caller in ("fairseq", r"lightconv_plugin\.compat", r"torch\.nn\.utils\.weight_norm"):  # shims pass calls on
        warnings.filterwarnings("ignore", category=FutureWarning, module=caller)


def help_with_model_options() -> None:
    """All versions: `--help` beside `--arch` and `--task` lists their options too.

    fairseq's parser prints its help and ends before it has read which model is meant.
    """
    from fairseq import options

    @shim(options, "parse_args_and_arch")
    def whole(original: Original, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = sys.argv[1:] if input_args is None else list(input_args)
        rest = [word for word in given if word not in ("-h", "--help")]

        def print_all(*_: Any) -> None:
            parser.print_help()
            parser.exit()

        if len(rest) < len(given):
            input_args, parser.parse_args = rest, print_all  # which fairseq calls when it has added all options
        return original(parser, input_args, *args, **kwargs)


def block_ngrams_that_were_written() -> None:
    """All versions, without fairseq's compiled extension: `--no-repeat-ngram-size`.

    fairseq compares the end of its buffer, which is padding until the longest hypothesis, with what was written, and so
    blocks nothing (its issues 4709 and 5206). With 1 it compares the whole hypothesis, and blocks nothing either.
    """
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    @shim(NGramRepeatBlock, "_no_repeat_ngram")
    def of_what_is_written(
        original: Original, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Any:
        if self.no_repeat_ngram_size == 1:
            # the first token begins the hypothesis, often with the end, which stays allowed
            return lprobs.scatter_(1, tokens[:, 1 : step + 1], -math.inf)
        return original(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


def end_lines_at_line_feeds() -> None:
    """All versions: `fairseq-interactive --input FILE` answers as many lines as there are line feeds.

    fairseq has Python's `fileinput` read with universal newlines, and so takes a carriage return within a line for its
    end. From standard input, and in scripts.translate, a line ends at a line feed.
    """

    @shim(fileinput, "hook_encoded")
    def at_line_feeds(original: Original, encoding: str, errors: str | None = None) -> Any:
        return lambda name, mode: open(name, mode, encoding=encoding, errors=errors, newline="\n")
