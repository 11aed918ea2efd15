"""fairseq's beam search with the same results in less time."""

import functools
import itertools
import logging
import math
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, FairseqDecoder
from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import BeamableMM
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.compat.internals import is_prepared_for_inference
from lightconv_plugin.modules.linear import packed_bytes
from lightconv_plugin.tasks.length_penalty import LengthPenalty
from lightconv_plugin.tasks.search_graphs import CapturedSearch
from lightconv_plugin.tasks.search_rules import Hypothesis, Rules

logger = logging.getLogger(__name__)

_PROBABILITIES = ("get_normalized_probs", "get_normalized_probs_scriptable")
_PLAIN_SOFTMAX = [
    getattr(kind, name) for kind in (BaseFairseqModel, TransformerModelBase, FairseqDecoder) for name in _PROBABILITIES
]

_NOT_STEPWISE = "--stepwise-length-penalty is for pla_translation's own search, which does not support {}"


def has_plain_softmax(model: Any) -> bool:
    """Return True if probabilities are the softmax of a decoder's logits: no class or instance overrides the methods.

    A wrapper that forwards its model's methods, such as the one for several processes, counts as its model.
    """
    return all(
        getattr(getattr(part, name, None), "__func__", None) in _PLAIN_SOFTMAX
        for part in (model, getattr(model, "decoder", None))
        for name in _PROBABILITIES
    )


class BeamSearchGenerator(SequenceGenerator):
    """Faster beam search with the hypotheses, scores and options of fairseq's ``SequenceGenerator``.

    It saves time in these ways:

    - Only the best continuations are written, never the log-probabilities of the whole vocabulary.
    - The first step computes one row per sentence.
    - A decoder that reads the source once does not get a copy of it for every hypothesis.
    - The host waits for a GPU once per step, to learn which sentences continue, and at the end of a batch.
    - For our own encoder-decoders, a step on a GPU is one CUDA graph (``search_graphs``). On a CPU, all steps of one
      model are one operator (``ops.beam_search``), except with --no-repeat-ngram-size.

    The resulting hypotheses are on the CPU. Searches of other kinds run in fairseq's generator, and the log says so
    once. Hypotheses contain no attention, which fairseq prints only with --print-alignment, by another generator.

    On a CPU, the weights of our own models are packed (``with_packed_weights``) in the current precision of products.
    If the models were prepared for inference, as by ``fairseq-generate`` and the hub, this is done once, when the
    generator is created: create a new one after their weights have changed. For other models, every search does it.

    Args:
        stepwise_length_penalty: alpha of ``LengthPenalty``, applied at every step; None for fairseq's search.

    Attributes:
        searched_by: how the last search ran: "operator" (all steps in one), "kernels" (one after the other), "graphs",
            or "fairseq".

    Raises:
        ValueError: a stepwise penalty is combined with --lenpen, --unnormalized or a search that only fairseq supports.
    """

    def __init__(
        self, models: Any, tgt_dict: Any, *, stepwise_length_penalty: float | None = None, **options: Any
    ) -> None:
        super().__init__(models, tgt_dict, **options)
        self.search: Any  # set by fairseq; only its type is read here
        self._refused = self._refusal()
        self.searched_by = ""
        penalty: Any = self.len_penalty if self.normalize_scores else 0.0
        if stepwise_length_penalty is not None:
            if penalty != 1:
                raise ValueError("--stepwise-length-penalty replaces --lenpen and --unnormalized; remove them")
            if self._refused is not None:
                raise ValueError(_NOT_STEPWISE.format(self._refused))
            penalty = LengthPenalty(stepwise_length_penalty)
        blocker = self.repeat_ngram_blocker
        self.rules = Rules(
            beam=self.beam_size,
            pad=self.pad,
            eos=self.eos,
            unk=self.unk,
            unk_penalty=self.unk_penalty,
            temperature=self.temperature,
            penalty=penalty,
            stepwise=stepwise_length_penalty is not None,
            ngram=0 if blocker is None else blocker.no_repeat_ngram_size,
        )
        self._captured = CapturedSearch(list(self.model.models), self.rules)
        # models that are prepared for inference keep their weights; those of --eval-bleu continue to train
        keep = all(map(is_prepared_for_inference, self.model.models))
        self._held = self._parts() if keep and self._refused is None else None
        if self._held is not None:
            self._report_packed(self._held)

    def _parts(self) -> list[tuple[Any, Any]]:
        """Return each model's encoder and decoder, as a search calls them."""
        return [
            model.for_search() if hasattr(model, "for_search") else (model.encoder, model.decoder)
            for model in self.model.models
        ]

    def _report_packed(self, parts: list[tuple[Any, Any]]) -> None:
        """Log the memory of the packed weights. The models keep their own weights, too."""
        packed = sum(packed_bytes(module) for pair in parts for module in pair)
        if packed:
            parameters = itertools.chain(*(model.parameters() for model in self.model.models))
            model_bytes = sum(parameter.nbytes for parameter in dict.fromkeys(parameters))
            logger.info(
                "lightconv_plugin: weights packed for the search in %s: %.1f MiB, in addition to the models' %.1f MiB",
                ops.precision_of_products(),
                packed / 2**20,
                model_bytes / 2**20,
            )

    def _refusal(self) -> str | None:
        """Return the reason why fairseq's generator must run the search, or None."""
        for model in self.model.models:
            name = type(model).__name__
            if not self.model.has_incremental or not hasattr(model, "encoder"):
                return f"{name}, which is not an encoder with an incremental decoder"
            if not has_plain_softmax(model):
                return f"{name}, which computes probabilities in its own way"
            if getattr(model.decoder, "adaptive_softmax", None) is not None:
                return "an adaptive softmax"
            if any(isinstance(module, BeamableMM) for module in model.modules()):
                return f"{name}, whose attention expects {self.beam_size} rows per sentence at every step"
        if type(self.search) is not BeamSearch:
            return type(self.search).__name__
        if self.match_source_len:
            return "--match-source-len"
        if self.lm_model is not None:
            return "a language model beside the translation model"
        if self.token_indices_to_suppress is not None:
            return "suppressed tokens"
        if self.vocab_size <= 2 * self.beam_size:
            return f"a vocabulary of only {self.vocab_size} entries for {self.beam_size} beams"
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
        if self.rules.stepwise:
            raise ValueError(_NOT_STEPWISE.format(refused))
        self.searched_by = "fairseq"
        _say_once(f"fairseq's own beam search runs, which is slower, because of {refused}")
        return super()._generate(sample, prefix_tokens, constraints, bos_token)

    def _search(self, net_input: dict[str, Tensor], bos: int) -> list[list[Hypothesis]]:
        source, models = net_input["src_tokens"], list(self.model.models)
        max_len = min(int(self.max_len_a * source.shape[1] + self.max_len_b), self.max_len - 1)
        if self.min_len > max_len:
            raise ValueError(f"--min-len {self.min_len} is larger than the longest hypothesis allowed, {max_len}")
        by_graphs = source.is_cuda and all(map(_has_graph, models))
        self.searched_by = "graphs" if by_graphs else "kernels"
        if by_graphs:
            return self._captured(source, bos=bos, min_len=self.min_len, max_len=max_len)
        encoders, decoders = zip(*(self._held or self._parts()), strict=True)
        encoder_outs = [encoder.forward_torchscript(net_input) for encoder in encoders]
        rules, beam, sentences = self.rules, self.beam_size, len(source)
        beams = rules.beams(sentences, max_len + 1, source.device)
        beams.limits[1], beams.limits[2] = self.min_len, max_len
        options: dict[str, Any] = {
            name: getattr(rules, name) for name in ("temperature", "pad", "eos", "unk", "unk_penalty")
        }
        searches_alone = len(models) == 1 and not rules.ngram and hasattr(decoders[0], "search")
        if searches_alone and decoders[0].search(encoder_outs[0], beams, bos, stepwise=rules.stepwise, **options):
            self.searched_by = "operator"
            return rules.results(beams, sentences)

        states: list[dict[str, Any]] = [{} for _ in models]
        # our decoders store keys and values of the source in the state; fairseq's get the encoder's output, row by row
        stateful = [(part, *part.stateful) if hasattr(part, "read_source") else None for part in decoders]
        # A decoder's batch holds the sentences that continue: row n is hypothesis n % width of sentence
        # searched[n // width]. Before the first token, a sentence has one row.
        searched, width = torch.arange(sentences, device=source.device), 1
        tokens = torch.full((sentences, max_len + 1), self.pad, dtype=torch.long, device=source.device)  # of each row
        tokens[:, 0] = bos
        scores = torch.zeros(sentences, device=source.device)  # of each row

        for step in range(max_len + 1):
            logits = [
                decoder(tokens[:, : step + 1], encoder_out=encoder_out, incremental_state=state)[0][:, -1]
                for decoder, encoder_out, state in zip(decoders, encoder_outs, states, strict=True)
            ]
            values, words, parents = ops.step_candidates(
                # fairseq's n-grams include the start symbol, but its 1-grams do not
                rules.joint_logits(logits, tokens[:, rules.ngram == 1 : step + 1]),
                scores,
                beams.limits,
                beams=width,
                count=2 * beam,
                **options,
            )
            if len(searched) < sentences:  # extend to all sentences: finished ones have no candidates
                values, words, parents = (
                    candidates.new_full((sentences, 2 * beam), missing).index_copy(0, searched, candidates)
                    for candidates, missing in ((values, -math.inf), (words, 0), (parents, 0))
                )
            ops.search_step(values, words, parents, beams, eos=self.eos, stepwise=rules.stepwise)

            # the host waits for a GPU here, to know the size
            going_on = beams.open.index_select(0, searched).nonzero().flatten()
            if step == max_len or not len(going_on):
                break
            searched = searched.index_select(0, going_on)
            parent, newest, scores = (
                value.view(-1, beam).index_select(0, searched)
                for value in (beams.order % beam, beams.newest, beams.scores)
            )
            order, scores = (width * going_on.unsqueeze(1) + parent).flatten(), scores.flatten()
            width = beam
            tokens = tokens.index_select(0, order)
            tokens[:, step + 1] = newest.flatten()
            for number, (modules, state) in enumerate(zip(stateful, states, strict=True)):
                if modules is None:
                    decoders[number].reorder_incremental_state_scripting(state, order)
                    encoder_outs[number] = models[number].encoder.reorder_encoder_out(encoder_outs[number], order)
                    continue
                for module in modules:
                    module.reorder_incremental_state(state, order)
        return rules.results(beams, sentences)


def _has_graph(model: Any) -> bool:
    """Return True if a graph can hold a step. If one of our models prevents it, log the reason once."""
    if not hasattr(model, "graph_refusal"):
        return False
    refused = model.graph_refusal()
    if refused is not None:
        _say_once(f"beam search runs without CUDA graphs, which is slower, because of {refused}")
    return refused is None


@functools.cache
def _say_once(sentence: str) -> None:
    logger.warning("lightconv_plugin: %s", sentence)
