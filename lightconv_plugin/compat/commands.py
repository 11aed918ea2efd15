"""fairseq's commands: help that is whole, diverse beams, and n-grams that are not to be repeated."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

from torch import Tensor

from lightconv_plugin.compat.shim import Original, shim


def help_with_model_options() -> None:
    """All versions: `--help` beside `--arch` and `--task` lists their options too.

    fairseq's parser prints its help and ends before it has read which model is meant.
    """
    from fairseq import options

    @shim(options, "parse_args_and_arch")
    def whole(
        original: Original, parser: Any, input_args: Any = None, *args: Any, modify_parser: Any = None, **kwargs: Any
    ) -> Any:
        given = sys.argv[1:] if input_args is None else list(input_args)
        rest = [word for word in given if word not in ("-h", "--help")]
        if len(rest) == len(given):
            return original(parser, input_args, *args, modify_parser=modify_parser, **kwargs)
        calls = itertools.count(1)

        def then_print(complete: Any) -> None:
            if modify_parser is not None:
                modify_parser(complete)
            if next(calls) == 2:  # fairseq calls this before and after it adds the model's options
                complete.print_help()
                complete.exit()

        return original(parser, rest, *args, modify_parser=then_print, **kwargs)


def keep_groups_of_beams_apart() -> None:
    """All versions: `--diverse-beam-groups` on data of more than one batch.

    The search keeps what its groups have in common by the sentence's place in the batch, and looks it up by the
    sentence's number in the data.
    """
    from fairseq.search import DiverseBeamSearch

    @shim(DiverseBeamSearch, "step")
    def by_place(
        original: Original, self: Any, step: int, lprobs: Any, scores: Any, tokens: Any = None, numbers: Any = None
    ) -> Any:
        if numbers is not None:
            self.sentences = numbers if step == 0 else self.sentences
            numbers = (numbers[:, None] == self.sentences).int().argmax(dim=1)
        return original(self, step, lprobs, scores, tokens, numbers)


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
