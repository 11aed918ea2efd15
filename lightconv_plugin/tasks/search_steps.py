"""Beam search with all of its state in tensors of fixed shapes: a step asks the host nothing, so a graph can hold it.

``BeamSearchGenerator`` is the definition. There a sentence that is finished leaves the batch, and the host keeps the
list of hypotheses. Here it stays in the batch and is ignored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.modules.window import StepByStep
from lightconv_plugin.tasks.length_penalty import LengthPenalty
from lightconv_plugin.tasks.logits import forbid_repeats, joint_logits


@dataclass(frozen=True)
class Rules:
    """Options of a search, which hold for all its batches."""

    beam: int
    pad: int
    eos: int
    unk: int
    unk_penalty: float
    temperature: float
    stepwise: LengthPenalty | None
    ngram: int = 0  # the length of n-grams that a hypothesis may not repeat


@dataclass(frozen=True)
class SearchResult:
    """All that a search has found, on the CPU.

    Attributes:
        words, parents, sums: (steps, rows): the word that a hypothesis goes on with, the row of the step before that it
            continues, and its log-probability so far.
        steps, rows, totals: (sentences, beam): the step in which a hypothesis ended, or ``ops.NEVER``, the row that it
            ended from, and its log-probability.
    """

    words: Tensor
    parents: Tensor
    sums: Tensor
    steps: Tensor
    rows: Tensor
    totals: Tensor

    def hypotheses(self) -> tuple[Tensor, Tensor, Tensor]:
        """Words and summed log-probabilities (sentences, beam, longest), the end included; and the lengths."""
        row, last = self.rows.flatten(), self.steps.flatten()
        longest = int(last.max()) + 1 if len(last) else 0
        path = torch.zeros(longest, len(last), dtype=torch.long)  # of each step the row, which goes on as that word
        before = last > torch.arange(longest).unsqueeze(1)
        for step in reversed(range(longest - 1)):
            path[step] = row
            row = torch.where(before[step], self.parents[step].gather(0, row), row)
        words, sums = (table[:longest].gather(1, path).t() for table in (self.words, self.sums))
        return words.reshape(*self.steps.shape, -1), sums.reshape(*self.steps.shape, -1), self.steps + 1


class DeviceSearch:
    """A search of up to ``sentences`` sources of up to ``length`` tokens, in steps that have one shape.

    Args:
        models: encoder-decoders of ours, in evaluation; the mean of their probabilities counts.
        rules: of the search.
        longest: tokens of a hypothesis, its end included, at most.

    Raises:
        ValueError: a decoder whose state grows from step to step.
    """

    def __init__(
        self,
        models: Sequence[Any],
        rules: Rules,
        *,
        sentences: int,
        length: int,
        longest: int,
        device: Any,
    ) -> None:
        self.models, self.rules = models, rules
        beam, rows = rules.beam, sentences * rules.beam

        def make(*shape: int, value: float = 0, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        single = torch.float32
        self.source = make(sentences, length, value=rules.pad)
        self.bos = make(1)
        self.history = make(rows, longest if rules.ngram else 0)  # each hypothesis' tokens, the newest last
        self.first_scores = make(sentences, beam, value=-math.inf, dtype=single)
        self.first_scores[:, :1] = 0  # before the first token all hypotheses are one
        penalties = [length**rules.stepwise if rules.stepwise else 1.0 for length in range(1, longest + 1)]
        self.beams = ops.Beams(
            limits=make(3),
            clock=make(sentences),
            penalties=torch.tensor(penalties, dtype=torch.float64).to(device),
            newest=make(rows),
            scores=make(rows, dtype=single),
            order=make(rows),
            words=make(longest, rows),
            parents=make(longest, rows),
            sums=make(longest, rows, dtype=single),
            steps=make(sentences, beam, value=ops.NEVER),
            rows=make(sentences, beam),
            totals=make(sentences, beam, dtype=single),
            ranks=make(sentences, beam, value=-math.inf, dtype=torch.float64),
            open=make(sentences, dtype=torch.bool),
            ancestors=make(0, rows, dtype=torch.int32),
        )
        self._make_states()

    @property
    def step_number(self) -> Tensor:
        """(1,), counted from 0."""
        return self.beams.limits[:1]

    def _make_states(self) -> None:
        """Take a step to learn what the decoder keeps, and keep it where it is from then on."""
        for model in self.models:
            model.decoder.reserve_positions(len(self.beams.words))
        self.states: list[dict[str, Any]] = [{} for _ in self.models]
        self._read_source()
        self._decode()
        self.kept = [
            (module, state, dict(module.get_incremental_state(state)))
            for model, state in zip(self.models, self.states, strict=True)
            for module in model.decoder.stateful
            if isinstance(module, StepByStep)
        ]
        if any("inputs" in entry for _, _, entry in self.kept):
            raise ValueError("a decoder's state that grows from step to step has no place in a graph")
        rings = [entry for _, _, entry in self.kept if "ring" in entry]
        widths = [len(entry["ring"]) for entry in rings]
        # of all layers in one tensor: they are re-ordered alike, and forgotten
        ancestors = self.bos.new_zeros(sum(widths), len(self.beams.newest), dtype=torch.int32)
        self.positions = self.bos.new_zeros(len(rings), 1)
        for entry, own, position in zip(rings, ancestors.split(widths), self.positions, strict=True):
            entry |= {"ancestors": own, "position": position}
        self.beams = self.beams._replace(ancestors=ancestors)

    def _read_source(self) -> None:
        for model, state in zip(self.models, self.states, strict=True):
            model.decoder.read_source(model.encoder(self.source, None), state, len(self.beams.newest))

    def _decode(self) -> Tensor:
        """Logits of the next token of every hypothesis."""
        decoded = [
            model.decoder.step(self.beams.newest, self.step_number, state)
            for model, state in zip(self.models, self.states, strict=True)
        ]
        return joint_logits(decoded, self.rules.temperature)

    @property
    def bytes(self) -> int:
        """The memory that lies here between batches, but for what the allocator rounds up."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        entries = [entry for state in self.states for entry in state.values() if isinstance(entry, dict)]
        tensors += [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in (*tensors, *self.beams))

    def give(self, source: Tensor, *, bos: int, min_len: int, max_len: int) -> None:
        """Take a batch (sentences, length), neither larger than the search's; a host's part, before ``begin``."""
        self.source.fill_(self.rules.pad)
        self.source[: source.shape[0], : source.shape[1]].copy_(source)
        self.bos.fill_(bos)
        for place, number in enumerate((0, min_len, max_len)):
            self.beams.limits[place].fill_(number)
        self.beams.open.fill_(False)
        self.beams.open[: source.shape[0]].fill_(True)

    def begin(self) -> None:
        """Read the source, and forget the batch before."""
        self._read_source()
        for module, state, entry in self.kept:
            for value in () if "ring" in entry else entry.values():  # of a ring a step reads no more than is written
                value.zero_()
            module.set_incremental_state(state, dict(entry))
        beams = self.beams
        for value in (beams.ancestors, self.positions, beams.clock):
            value.zero_()
        beams.newest.copy_(self.bos.expand_as(beams.newest))
        self.history.fill_(self.rules.pad)
        if self.rules.ngram > 1:  # fairseq lets the first token be repeated by itself
            self.history[:, -1].copy_(beams.newest)
        beams.scores.copy_(self.first_scores.flatten())
        beams.steps.fill_(ops.NEVER)
        beams.ranks.fill_(-math.inf)

    def step(self) -> None:
        """Add a token to every hypothesis."""
        rules, beams = self.rules, self.beams
        logits = forbid_repeats(
            self._decode(), self.history, ngram=rules.ngram, temperature=rules.temperature, pad=rules.pad
        )
        candidates = ops.step_candidates(
            logits,
            beams.scores,
            beams.limits,
            beams=rules.beam,
            count=2 * rules.beam,
            temperature=rules.temperature,
            pad=rules.pad,
            eos=rules.eos,
            unk=rules.unk,
            unk_penalty=rules.unk_penalty,
        )
        ops.search_step(*candidates, beams, eos=rules.eos, stepwise=rules.stepwise is not None)
        if rules.ngram:
            history = self.history.index_select(0, beams.order)
            self.history.copy_(torch.cat([history[:, 1:], beams.newest.unsqueeze(1)], dim=1))
        for module, state, entry in self.kept:
            if "ring" not in entry:
                new = module.get_incremental_state(state)
                for name, value in entry.items():
                    value.copy_(new[name].index_select(1, beams.order))
                module.set_incremental_state(state, dict(entry))

    def found(self, sentences: int, steps: int) -> SearchResult:
        """Copy the hypotheses of the first sentences, after so many steps, to the CPU."""
        beams = self.beams
        tables = (table[:steps].cpu() for table in (beams.words, beams.parents, beams.sums))
        return SearchResult(*tables, *(held[:sentences].cpu() for held in (beams.steps, beams.rows, beams.totals)))
