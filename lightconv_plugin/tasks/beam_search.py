"""fairseq's beam search with the same results in less time."""

import logging
import math
from collections import Counter
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, FairseqDecoder
from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import BeamableMM
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.tasks.captured_search import CapturedSearch
from lightconv_plugin.tasks.device_search import Rules, SearchResult
from lightconv_plugin.tasks.length_penalty import LengthPenalty, StepwiseBeam, StepwiseBeamSearch, drop

logger = logging.getLogger(__name__)

_PROBABILITIES = ("get_normalized_probs", "get_normalized_probs_scriptable")
_PLAIN_SOFTMAX = [
    getattr(kind, name) for kind in (BaseFairseqModel, TransformerModelBase, FairseqDecoder) for name in _PROBABILITIES
]
_said: set[str] = set()

_NO_END = (
    "no hypothesis of {} sentences could end after {} tokens: "
    "the model gives the end of a sentence no probability, or one that is not a number"
)

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
    encoder-decoders a step on a GPU is one graph (``captured_search``), and hypotheses come to lie on the CPU. What it
    does not do itself, fairseq's generator does, and the log says so once. Its hypotheses carry no attention: fairseq
    shows that with --print-alignment alone, which has a generator of its own.

    Args:
        stepwise_length_penalty: alpha of ``length_penalty.StepwiseBeam``; None for fairseq's search.

    Attributes:
        captures: take graphs where they can be had; False is for a comparison.

    Raises:
        ValueError: a stepwise penalty beside an option that it cannot go with.
    """

    def __init__(
        self, models: Any, tgt_dict: Any, *, stepwise_length_penalty: float | None = None, **options: Any
    ) -> None:
        super().__init__(models, tgt_dict, **options)
        self.stepwise: LengthPenalty | None = None
        self.search: Any  # of super's; read here by its type
        self.len_penalty: Any
        if stepwise_length_penalty is not None:
            self._apply_stepwise(LengthPenalty(stepwise_length_penalty))
        self._refused = self._refusal()
        self.captures = True
        self._captured: CapturedSearch | None = None

    def _apply_stepwise(self, penalty: LengthPenalty) -> None:
        if type(self.search) is not BeamSearch:
            raise ValueError(f"--stepwise-length-penalty is for plain beam search, got {type(self.search).__name__}")
        if not self.normalize_scores or self.len_penalty != 1:
            other = "--unnormalized" if not self.normalize_scores else f"--lenpen {self.len_penalty}"
            raise ValueError(f"--stepwise-length-penalty is a length penalty by itself; take {other} away")
        self.stepwise = self.len_penalty = penalty
        self.search = StepwiseBeamSearch(self.tgt_dict, penalty)

    def _refusal(self) -> str | None:
        """Return why fairseq's generator must do the search, in words; None if it need not."""
        if self.model.models_size != 1:
            return f"an ensemble of {self.model.models_size} models"
        model = self.model.single_model
        if not self.model.has_incremental or not self.model.has_encoder():
            return f"{type(model).__name__}, which is not an encoder with an incremental decoder"
        if not has_plain_softmax(model):
            return f"{type(model).__name__}, which has probabilities of its own"
        if getattr(model.decoder, "adaptive_softmax", None) is not None:
            return "an adaptive softmax"
        if any(isinstance(module, BeamableMM) for module in model.modules()):
            return f"{type(model).__name__}, whose attention counts on {self.beam_size} rows a sentence at every step"
        if type(self.search) not in (BeamSearch, StepwiseBeamSearch):
            return f"{type(self.search).__name__}"
        if self.match_source_len:
            return "--match-source-len"
        if self.repeat_ngram_blocker is not None:
            return "--no-repeat-ngram-size"
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
        if prefix_tokens is not None:
            refused = "prefix tokens"
        elif constraints is not None:
            refused = "constraints"
        elif "src_tokens" not in sample["net_input"]:
            refused = "a source that is not of tokens"
        if refused is None:
            return self._search(sample["net_input"], self.eos if bos_token is None else bos_token)
        _say_once(f"fairseq's own beam search runs, which is slower, for {refused}")
        return super()._generate(sample, prefix_tokens, constraints, bos_token)

    def finalize_hypos(
        self,
        step: int,
        bbsz_idx: Tensor,
        eos_scores: Tensor,
        tokens: Tensor,
        scores: Tensor,
        finalized: list[list[Hypothesis]],
        finished: list[bool],
        *others: Any,
    ) -> list[int]:
        """As fairseq's; where the list of a sentence is full, the worst make room for those that end now."""
        if self.stepwise is not None:
            going_on = [known for known, done in zip(finalized, finished, strict=True) if not done]
            for known, ends in zip(going_on, self.search.beam.ends, strict=True):
                known.sort(key=lambda hypothesis: -hypothesis["score"].item())
                del known[self.beam_size - ends :]
        newly: list[int] = super().finalize_hypos(
            step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, *others
        )
        return newly

    def is_finished(self, step: int, unfin_idx: int, max_len: int, *others: Any) -> bool:
        if self.stepwise is not None:
            return step == max_len or not self.search.beam.goes_on[unfin_idx]
        return bool(super().is_finished(step, unfin_idx, max_len, *others))

    def _search(self, net_input: dict[str, Tensor], bos: int) -> list[list[Hypothesis]]:
        sentences, source_length = net_input["src_tokens"].shape[:2]
        max_len = min(int(self.max_len_a * source_length + self.max_len_b), self.max_len - 1)
        if self.min_len > max_len:
            raise ValueError(f"--min-len {self.min_len} is larger than the longest hypothesis allowed, {max_len}")
        model = self.model.single_model
        if self.captures and net_input["src_tokens"].is_cuda and sentences and _has_graph(model):
            return self._search_captured(net_input["src_tokens"], bos, max_len)
        (encoder_out,) = self.model.forward_encoder(net_input)
        state: dict[str, Any] = {}
        device = net_input["src_tokens"].device
        tokens = torch.full((sentences, max_len + 2), self.pad, dtype=torch.long, device=device)
        tokens[:, 0] = bos
        scores = torch.zeros(sentences, max_len + 1, device=device)  # summed up to each position
        finished: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        open_sentences = list(range(sentences))  # the sentence that each group of rows belongs to
        beams = 1  # rows a sentence: before the first token all hypotheses are one
        stepwise = StepwiseBeam(sentences, self.beam_size, self.stepwise, self.eos) if self.stepwise else None

        for step in range(max_len + 1):
            logits = model.decoder(tokens[:, : step + 1], encoder_out=encoder_out, incremental_state=state)[0]
            values, words, parents = ops.beam_candidates(
                logits[:, -1],
                scores[:, step - 1] if step > 0 else None,
                beams=beams,
                count=2 * self.beam_size,  # half of them may end
                temperature=self.temperature,
                pad=self.pad,
                unk=self.unk,
                unk_penalty=self.unk_penalty,
                banned=self.eos if step < self.min_len else None,
                only=self.eos if step >= max_len else None,
            )
            parents = parents + beams * torch.arange(len(parents), device=device).unsqueeze(1)
            # both in one transfer, for which alone a GPU is waited for; float64 holds either without rounding
            sums, tails = torch.stack([values.double(), words.double()]).tolist()
            if stepwise is not None:
                drop(values, stepwise.admit(sums, tails, step + 1))
            ends, going_on = self._divide(sums, tails)
            ended = Counter(place // values.shape[1] for place in ends)
            kept = []
            for group, sentence in enumerate(open_sentences):
                known = len(finished[sentence]) + ended[group]
                if stepwise is None:
                    goes_on = not ended[group] or (step < max_len and known < self.beam_size)
                else:
                    goes_on = not known or stepwise.goes_on[group]
                if goes_on:
                    kept.append(group)
            chosen = [place for group in kept for place in going_on[group]]
            numbers = torch.tensor(ends + chosen + kept, dtype=torch.long).to(device, non_blocking=True)
            ending, places, groups = numbers.split([len(ends), len(chosen), len(kept)])
            if ends:
                hypotheses = self._finish(step, tokens, scores, parents.view(-1)[ending], values.view(-1)[ending])
                for place, hypothesis in zip(ends, hypotheses, strict=True):
                    done = finished[open_sentences[place // values.shape[1]]]
                    if stepwise is not None or len(done) < self.beam_size:
                        done.append(hypothesis)
            if not kept:
                break
            if step == max_len:
                raise RuntimeError(_NO_END.format(len(kept), max_len))
            order = parents.view(-1)[places]
            tokens, scores = tokens.index_select(0, order), scores.index_select(0, order)
            tokens[:, step + 1] = words.view(-1)[places]
            scores[:, step] = values.view(-1)[places]
            beams = self.beam_size
            if hasattr(model.decoder, "reorder_within_sentences"):
                all_go_on = len(kept) == len(open_sentences)
                model.decoder.reorder_within_sentences(state, order, None if all_go_on else groups)
            else:
                model.decoder.reorder_incremental_state_scripting(state, order)
                encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            open_sentences = [open_sentences[group] for group in kept]
            if stepwise is not None:
                stepwise.keep(kept)
        return [hypotheses[: self.beam_size] for hypotheses in _best_first(finished)]

    def _search_captured(self, source: Tensor, bos: int, max_len: int) -> list[list[Hypothesis]]:
        if self._captured is None:
            rules = Rules(
                beam=self.beam_size,
                pad=self.pad,
                eos=self.eos,
                unk=self.unk,
                unk_penalty=self.unk_penalty,
                temperature=self.temperature,
                stepwise=self.stepwise,
            )
            self._captured = CapturedSearch(self.model.single_model, rules)
        found, stuck = self._captured(source, bos=bos, min_len=self.min_len, max_len=max_len)
        if stuck:
            raise RuntimeError(_NO_END.format(stuck, max_len))
        return _best_first(self._described(found))

    def _described(self, found: SearchResult) -> list[list[Hypothesis]]:
        """Hypotheses of each sentence in fairseq's form, in the order in which they were kept."""
        words, sums, lengths = found.hypotheses()
        last = (lengths - 1).clamp(min=0).unsqueeze(2)
        words.scatter_(2, last, self.eos)
        sums.scatter_(2, last, found.totals.unsqueeze(2))
        sums[:, :, 1:] = sums[:, :, 1:] - sums[:, :, :-1]
        scores, sizes = found.totals, lengths.tolist()
        if self.normalize_scores:
            # as a number of Python's each, which len_penalty may ask for
            divisors = [[max(size, 1) ** self.len_penalty for size in row] for row in sizes]
            scores = scores / torch.tensor(divisors, dtype=scores.dtype)
        none = torch.empty(0)
        return [
            [
                {
                    "tokens": words[row, place, :size],
                    "score": scores[row, place],
                    "attention": none,
                    "alignment": none,
                    "positional_scores": sums[row, place, :size],
                }
                for place, size in enumerate(own)
                if size > 0
            ]
            for row, own in enumerate(sizes)
        ]

    def _divide(self, values: list[list[float]], words: list[list[int]]) -> tuple[list[int], list[list[int]]]:
        """Return which candidates end among the best ``beam_size`` of their sentence, and which ``beam_size`` go on.

        Candidates are named by their place among those of all sentences.
        """
        ends: list[int] = []
        going_on: list[list[int]] = []
        width = 2 * self.beam_size
        for group, (row_values, row_words) in enumerate(zip(values, words, strict=True)):
            first = group * width
            if self.eos not in row_words:
                going_on.append(list(range(first, first + self.beam_size)))
                continue
            ending = [row_words[i] == self.eos and row_values[i] != -math.inf for i in range(width)]
            ends += [first + i for i in range(self.beam_size) if ending[i]]
            going_on.append([first + i for i in range(width) if not ending[i]][: self.beam_size])
        return ends, going_on

    def _finish(self, step: int, tokens: Tensor, scores: Tensor, rows: Tensor, totals: Tensor) -> list[Hypothesis]:
        """Hypotheses of the rows' tokens and an end, in fairseq's form; ``totals``: their scores, end included."""
        ended = tokens.index_select(0, rows)[:, 1 : step + 2]
        ended[:, step] = self.eos
        positional = scores.index_select(0, rows)[:, : step + 1]
        positional[:, step] = totals
        positional[:, 1:] = positional[:, 1:] - positional[:, :-1]
        if self.normalize_scores:
            totals = totals / (step + 1) ** self.len_penalty
        none = torch.empty(0)
        return [
            {
                "tokens": ended[i],
                "score": totals[i],
                "attention": none,
                "alignment": none,
                "positional_scores": positional[i],
            }
            for i in range(len(rows))
        ]


def _has_graph(model: Any) -> bool:
    """Return True if a graph can hold a step; the log says once why one of our models cannot have it."""
    if not hasattr(model, "graph_refusal"):
        return False
    refused = model.graph_refusal()
    if refused is not None:
        _say_once(f"beam search runs without CUDA graphs, which is slower, for {refused}")
    return refused is None


def _say_once(sentence: str) -> None:
    if sentence not in _said:
        _said.add(sentence)
        logger.warning("lightconv_plugin: %s", sentence)


def _best_first(finished: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Sort the hypotheses of each sentence by their scores, which are read in one transfer."""
    totals = [hypothesis["score"] for done in finished for hypothesis in done]
    scores = iter(torch.stack(totals).tolist() if totals else [])
    ranked = [[(-next(scores), hypothesis) for hypothesis in done] for done in finished]
    return [[hypothesis for _, hypothesis in sorted(pairs, key=lambda pair: pair[0])] for pairs in ranked]
