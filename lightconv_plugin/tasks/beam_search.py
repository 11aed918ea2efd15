"""fairseq's beam search with the same results in less time."""

import functools
import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, FairseqDecoder
from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import BeamableMM
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.tasks.length_penalty import LengthPenalty, StepwiseBeam, drop
from lightconv_plugin.tasks.logits import forbid_repeats, joint_logits
from lightconv_plugin.tasks.search_graphs import CapturedSearch
from lightconv_plugin.tasks.search_steps import Rules, SearchResult

logger = logging.getLogger(__name__)

_PROBABILITIES = ("get_normalized_probs", "get_normalized_probs_scriptable")
_PLAIN_SOFTMAX = [
    getattr(kind, name) for kind in (BaseFairseqModel, TransformerModelBase, FairseqDecoder) for name in _PROBABILITIES
]

_NO_END = (
    "no hypothesis of {} sentences could end after {} tokens: "
    "the model gives the end of a sentence no probability, or one that is not a number"
)
_NOT_STEPWISE = "--stepwise-length-penalty is for pla_translation's own search, which does not take {}"

Hypothesis = dict[str, Tensor]


def has_plain_softmax(model: Any) -> bool:
    """Return True if probabilities are the softmax of a decoder's logits: no class or instance has a way of its own.

    A wrapper that passes on its model's methods, such as that of several processes, is seen through.
    """
    return all(
        getattr(getattr(part, name, None), "__func__", None) in _PLAIN_SOFTMAX
        for part in (model, getattr(model, "decoder", None))
        for name in _PROBABILITIES
    )


class BeamSearchGenerator(SequenceGenerator):
    """Beam search as fairseq's ``SequenceGenerator`` does it: the same hypotheses, scores and options.

    What is saved: log-probabilities of the whole vocabulary are never written, only the best continuations; the first
    step takes one row a sentence; a decoder that reads the source once is not given it for every hypothesis; a GPU is
    waited for once a step, when the candidates' scores and words are read, and once at the end of a batch; for our own
    encoder-decoders a step on a GPU is one graph (``search_graphs``), and hypotheses come to lie on the CPU. What it
    does not do itself, fairseq's generator does, and the log says so once. Its hypotheses carry no attention: fairseq
    shows that with --print-alignment alone, which has a generator of its own.

    Weights that are packed for bfloat16 are packed as the generator is made, from models that were prepared for
    inference, as ``fairseq-generate`` and the hub do: make another generator when their weights have changed. Of other
    models each search packs them anew.

    Args:
        stepwise_length_penalty: alpha of ``length_penalty.StepwiseBeam``; None for fairseq's search.

    Raises:
        ValueError: a stepwise penalty, which fairseq's generator does not know, beside what it cannot go with.
    """

    def __init__(
        self, models: Any, tgt_dict: Any, *, stepwise_length_penalty: float | None = None, **options: Any
    ) -> None:
        super().__init__(models, tgt_dict, **options)
        self.stepwise = None if stepwise_length_penalty is None else LengthPenalty(stepwise_length_penalty)
        self.search: Any  # of super's; read here by its type
        self.len_penalty: Any
        blocker = self.repeat_ngram_blocker
        self.ngram: int = 0 if blocker is None else blocker.no_repeat_ngram_size
        self._refused = self._refusal()
        if self.stepwise is not None:
            if not self.normalize_scores or self.len_penalty != 1:
                other = "--unnormalized" if not self.normalize_scores else f"--lenpen {self.len_penalty}"
                raise ValueError(f"--stepwise-length-penalty is a length penalty by itself; take {other} away")
            if self._refused is not None:
                raise ValueError(_NOT_STEPWISE.format(self._refused))
            self.len_penalty = self.stepwise
        self._captured: CapturedSearch | None = None
        # prepared for inference, models keep their weights; those that --eval-bleu searches with go on learning
        keep = all(getattr(model, "_is_generation_fast", False) for model in self.model.models)
        self._held = self._parts() if keep and self._refused is None else None

    def _parts(self) -> list[tuple[Any, Any]]:
        """Each model's encoder and decoder, as a search calls them."""
        return [
            model.for_search() if hasattr(model, "for_search") else (model.encoder, model.decoder)
            for model in self.model.models
        ]

    def _refusal(self) -> str | None:
        """Return why fairseq's generator must do the search, in words; None if it need not."""
        for model in self.model.models:
            name = type(model).__name__
            if not self.model.has_incremental or not hasattr(model, "encoder"):
                return f"{name}, which is not an encoder with an incremental decoder"
            if not has_plain_softmax(model):
                return f"{name}, which has probabilities of its own"
            if getattr(model.decoder, "adaptive_softmax", None) is not None:
                return "an adaptive softmax"
            if any(isinstance(module, BeamableMM) for module in model.modules()):
                return f"{name}, whose attention counts on {self.beam_size} rows a sentence at every step"
        if type(self.search) is not BeamSearch:
            return type(self.search).__name__
        if self.match_source_len:
            return "--match-source-len"
        if self.lm_model is not None:
            return "a language model beside the translation model"
        if self.token_indices_to_suppress is not None:
            return "suppressed tokens"
        if self.vocab_size <= 2 * self.beam_size:
            return f"a vocabulary of {self.vocab_size} types for {self.beam_size} beams"
        return None

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        refused = self._refused
        if constraints is not None:
            refused = "constraints"
        elif prefix_tokens is not None and prefix_tokens.shape[1]:
            refused = "a prefix"
        if refused is None:
            return self._search(sample["net_input"], self.eos if bos_token is None else bos_token)
        if self.stepwise is not None:
            raise ValueError(_NOT_STEPWISE.format(refused))
        _say_once(f"fairseq's own beam search runs, which is slower, for {refused}")
        return super()._generate(sample, prefix_tokens, constraints, bos_token)

    def _search(self, net_input: dict[str, Tensor], bos: int) -> list[list[Hypothesis]]:
        source, models = net_input["src_tokens"], list(self.model.models)
        max_len = min(int(self.max_len_a * source.shape[1] + self.max_len_b), self.max_len - 1)
        if self.min_len > max_len:
            raise ValueError(f"--min-len {self.min_len} is larger than the longest hypothesis allowed, {max_len}")
        if source.is_cuda and len(source) and all(map(_has_graph, models)):
            return self._search_captured(source, bos, max_len)
        encoders, decoders = zip(*(self._held or self._parts()), strict=True)
        read = [encoder.forward_torchscript(net_input) for encoder in encoders]
        states: list[dict[str, Any]] = [{} for _ in models]
        # a row is a hypothesis; those of a sentence lie together, and before the first token they are one
        tokens = torch.full((len(source), max_len + 2), self.pad, dtype=torch.long, device=source.device)
        tokens[:, 0] = bos
        scores = torch.zeros(len(source), max_len + 1, device=source.device)  # summed up to each position
        finished: list[list[Hypothesis]] = [[] for _ in source]
        searched = list(range(len(source)))  # the sentences that go on, in the order of their rows
        limits = torch.tensor([0, self.min_len, max_len]).to(source.device, non_blocking=True)
        stepwise = StepwiseBeam(len(source), self.beam_size, self.stepwise, self.eos) if self.stepwise else None

        for step in range(max_len + 1):
            logits = [
                decoder(tokens[:, : step + 1], encoder_out=encoder_out, incremental_state=state)[0][:, -1]
                for decoder, encoder_out, state in zip(decoders, read, states, strict=True)
            ]
            values, words, rows = self._candidates(logits, tokens, scores, limits, step, len(searched))
            limits[:1].add_(1)
            # both in one transfer, for which alone a GPU is waited for; float64 holds either without rounding
            sums, tails = torch.stack([values.double(), words.double()]).tolist()
            if stepwise is not None:
                drop(values, stepwise.admit(sums, tails, step + 1))

            found = [len(finished[sentence]) for sentence in searched]
            ends, going_on, kept = self._chosen(sums, tails, found, stepwise, last=step == max_len)
            numbers = torch.tensor(ends + going_on, dtype=torch.long).to(source.device, non_blocking=True)
            ended, continued = numbers.split([len(ends), len(going_on)])

            if ends:
                hypotheses = self._finish(step, tokens, scores, rows.view(-1)[ended], values.view(-1)[ended])
                for candidate, hypothesis in zip(ends, hypotheses, strict=True):
                    done = finished[searched[candidate // values.shape[1]]]
                    if stepwise is not None or len(done) < self.beam_size:
                        done.append(hypothesis)
            if not kept:
                break
            if step == max_len:
                raise RuntimeError(_NO_END.format(len(kept), max_len))

            order = rows.view(-1)[continued]
            tokens, scores = tokens.index_select(0, order), scores.index_select(0, order)
            tokens[:, step + 1] = words.view(-1)[continued]
            scores[:, step] = values.view(-1)[continued]
            self._reorder(decoders, read, states, order)
            searched = [searched[place] for place in kept]
            if stepwise is not None:
                stepwise.keep(kept)
        return [hypotheses[: self.beam_size] for hypotheses in _best_first(finished)]

    def _candidates(
        self,
        logits: list[Tensor],
        tokens: Tensor,
        scores: Tensor,
        limits: Tensor,
        step: int,
        sentences: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each sentence, half of which may end: scores, words and the rows they continue.

        ``logits`` are each model's.
        """
        allowed = forbid_repeats(
            joint_logits(logits, self.temperature),
            tokens[:, self.ngram == 1 : step + 1],  # fairseq lets the first token be repeated by itself
            ngram=self.ngram,
            temperature=self.temperature,
            pad=self.pad,
        )
        beams = len(allowed) // sentences if sentences else 1
        values, words, parents = ops.step_candidates(
            allowed,
            scores[:, max(step - 1, 0)],
            limits,
            beams=beams,
            count=2 * self.beam_size,
            temperature=self.temperature,
            pad=self.pad,
            eos=self.eos,
            unk=self.unk,
            unk_penalty=self.unk_penalty,
        )
        return values, words, parents + beams * torch.arange(len(parents), device=parents.device).unsqueeze(1)

    def _chosen(
        self,
        sums: list[list[float]],
        words: list[list[int]],
        found: list[int],
        stepwise: StepwiseBeam | None,
        *,
        last: bool,
    ) -> tuple[list[int], list[int], list[int]]:
        """Choose the candidates that end, of a sentence's best ``beam_size``, and the ``beam_size`` that go on.

        Args:
            sums, words: of each sentence's candidates, the best first.
            found: how many hypotheses of each sentence have ended before.
            last: no step follows.

        Returns:
            the two, by their place among the candidates of all sentences, and the places of the sentences that go on.
        """
        ends, going_on, kept = [], [], []
        for place, (totals, tails) in enumerate(zip(sums, words, strict=True)):
            first, beam = place * len(tails), self.beam_size
            ending, others = [], list(range(first, first + beam))
            if self.eos in tails:
                ended = [tail == self.eos and total != -math.inf for total, tail in zip(totals, tails, strict=True)]
                ending = [first + i for i in range(beam) if ended[i]]
                others = [first + i for i, end in enumerate(ended) if not end][:beam]
            ends += ending
            known = found[place] + len(ending)
            if stepwise is not None:
                goes_on = not known or stepwise.goes_on[place]
            else:
                goes_on = not ending or (not last and known < beam)
            if goes_on:
                going_on += others
                kept.append(place)
        return ends, going_on, kept

    def _reorder(self, decoders: Sequence[Any], read: list[Any], states: list[dict[str, Any]], order: Tensor) -> None:
        """Have row n of each model's state, and of what it has read, be row order[n]."""
        for number, (model, decoder, state) in enumerate(zip(self.model.models, decoders, states, strict=True)):
            decoder.reorder_incremental_state_scripting(state, order)
            if not hasattr(decoder, "read_source"):  # else the state holds what steps need of the source
                read[number] = model.encoder.reorder_encoder_out(read[number], order)

    def _finish(self, step: int, tokens: Tensor, scores: Tensor, rows: Tensor, totals: Tensor) -> list[Hypothesis]:
        """Hypotheses of the rows' tokens and an end, in fairseq's form; ``totals``: their scores, end included."""
        ended = tokens.index_select(0, rows)[:, 1 : step + 2]
        ended[:, step] = self.eos
        positional = scores.index_select(0, rows)[:, : step + 1]
        positional[:, step] = totals
        positional[:, 1:] = positional[:, 1:] - positional[:, :-1]
        if self.normalize_scores:
            totals = totals / (step + 1) ** self.len_penalty
        return _hypotheses(ended, totals, positional)

    def _search_captured(self, source: Tensor, bos: int, max_len: int) -> list[list[Hypothesis]]:
        if self._captured is None:
            rules = Rules(
                beam=self.beam_size,
                pad=self.pad,
                eos=self.eos,
                unk=self.unk,
                unk_penalty=self.unk_penalty,
                temperature=self.temperature,
                ngram=self.ngram,
                stepwise=self.stepwise,
            )
            self._captured = CapturedSearch(list(self.model.models), rules)
        found, stuck = self._captured(source, bos=bos, min_len=self.min_len, max_len=max_len)
        if stuck:
            raise RuntimeError(_NO_END.format(stuck, max_len))
        return self._described(found)

    def _described(self, found: SearchResult) -> list[list[Hypothesis]]:
        """Hypotheses of each sentence in fairseq's form, the best first."""
        words, sums, lengths = found.hypotheses()
        last, scores = (lengths - 1).clamp(min=0), found.totals
        words.scatter_(2, last.unsqueeze(2), self.eos)
        sums.scatter_(2, last.unsqueeze(2), scores.unsqueeze(2))
        sums[:, :, 1:] = sums[:, :, 1:] - sums[:, :, :-1]
        if self.normalize_scores:
            # of numbers of Python's, which len_penalty may ask for
            penalties = [size**self.len_penalty for size in range(1, words.shape[2] + 1)]
            scores = scores / torch.tensor(penalties, dtype=scores.dtype)[last]
        best = (-scores).masked_fill(lengths == 0, math.inf).sort(dim=1, stable=True).indices
        words, sums = (each.gather(1, best.unsqueeze(2).expand_as(each)) for each in (words, sums))
        lengths, scores = lengths.gather(1, best), scores.gather(1, best)
        written = torch.arange(words.shape[2]) < lengths.unsqueeze(2)
        sizes = lengths[lengths > 0].tolist()
        every = iter(_hypotheses(words[written].split(sizes), scores[lengths > 0].unbind(), sums[written].split(sizes)))
        return [list(itertools.islice(every, count)) for count in (lengths > 0).sum(dim=1).tolist()]


def _hypotheses(tokens: Iterable[Tensor], scores: Iterable[Tensor], positional: Iterable[Tensor]) -> list[Hypothesis]:
    """Hypotheses in fairseq's form."""
    none = torch.empty(0)
    return [
        {"tokens": own, "score": score, "attention": none, "alignment": none, "positional_scores": each}
        for own, score, each in zip(tokens, scores, positional, strict=True)
    ]


def _has_graph(model: Any) -> bool:
    """Return True if a graph can hold a step; the log says once why one of our models cannot have it."""
    if not hasattr(model, "graph_refusal"):
        return False
    refused = model.graph_refusal()
    if refused is not None:
        _say_once(f"beam search runs without CUDA graphs, which is slower, for {refused}")
    return refused is None


@functools.cache
def _say_once(sentence: str) -> None:
    logger.warning("lightconv_plugin: %s", sentence)


def _best_first(finished: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Sort the hypotheses of each sentence by their scores, which are read in one transfer."""
    totals = [hypothesis["score"] for done in finished for hypothesis in done]
    scores = iter(torch.stack(totals).tolist() if totals else [])
    ranked = [[(-next(scores), hypothesis) for hypothesis in done] for done in finished]
    return [[hypothesis for _, hypothesis in sorted(pairs, key=lambda pair: pair[0])] for pairs in ranked]
