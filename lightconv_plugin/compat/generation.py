"""Generation with options that fairseq offers and stumbles over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lightconv_plugin.compat.wrap import wrap


def keep_groups_of_beams_apart() -> None:
    """All versions: `--diverse-beam-groups` on data of more than one batch.

    The search keeps what its groups have in common by the sentence's place in the batch, and looks it up by the
    sentence's number in the data.
    """
    from fairseq.search import DiverseBeamSearch

    def by_place(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(
            self: Any,
            step: int,
            lprobs: Tensor,
            scores: Tensor,
            prev_output_tokens: Tensor | None = None,
            original_batch_idxs: Tensor | None = None,
        ) -> Any:
            if original_batch_idxs is not None:
                if step == 0:
                    self.sentences = original_batch_idxs
                original_batch_idxs = (original_batch_idxs[:, None] == self.sentences).int().argmax(dim=1)
            return original(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)

        return wrapper

    wrap(DiverseBeamSearch, "step", by_place)


def count_steps_of_beam_search() -> None:
    """All versions: `--print-step` with a model that writes one token after the other.

    fairseq prints what its non-autoregressive models note. Of a beam search's hypothesis each token took a step.
    """
    from fairseq.sequence_generator import SequenceGenerator

    def with_steps(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            for hypothesis in (hypothesis for sentence in found for hypothesis in sentence):
                hypothesis["steps"] = len(hypothesis["tokens"])
            return found

        return wrapper

    wrap(SequenceGenerator, "generate", with_steps)


def block_ngrams_that_were_written() -> None:
    """All versions, without fairseq's compiled extension: `--no-repeat-ngram-size`.

    fairseq compares the end of its buffer, which is padding until the longest hypothesis, with what was written, and so
    blocks nothing (its issues 4709 and 5206).
    """
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    def of_what_is_written(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Any:
            return original(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)

        return wrapper

    wrap(NGramRepeatBlock, "_no_repeat_ngram", of_what_is_written)
