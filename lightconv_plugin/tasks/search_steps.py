"""Beam search with its state in tensors of fixed shapes. A step needs nothing from the host, so a graph can hold it.

``BeamSearchGenerator`` is the reference implementation. There a finished sentence leaves the decoder's batch; here it
stays and is ignored.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.modules.window import StepByStep
from lightconv_plugin.tasks.search_rules import Rules


class DeviceSearch:
    """A search for up to ``sentences`` sources of up to ``length`` tokens. All steps have the same shapes.

    Args:
        models: our encoder-decoders, in evaluation mode; their probabilities are averaged.
        rules: the options of the search.
        longest: largest number of tokens of a hypothesis, including its end.
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
        self.source = torch.full((sentences, length), rules.pad, device=device)
        self.bos = torch.zeros(1, dtype=torch.long, device=device)
        self.beams = rules.beams(sentences, longest, device)
        # each hypothesis' tokens, the newest last
        self.history = self.bos.new_zeros(sentences * rules.beam, longest if rules.ngram else 0)
        self.first_scores = torch.full((sentences, rules.beam), -math.inf, device=device)
        self.first_scores[:, :1] = 0  # before the first token, all hypotheses are the same: the first one counts
        self._make_states()

    @property
    def step_number(self) -> Tensor:
        """Number of the step, (1,), counted from 0."""
        return self.beams.limits[:1]

    def _make_states(self) -> None:
        """Run a step to create the decoders' states. From then on, their tensors keep their addresses."""
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
        rings = [entry for _, _, entry in self.kept if "ring" in entry]
        widths = [len(entry["ring"]) for entry in rings]
        # one tensor for all layers: all tables are reordered and reset together
        ancestors = self.bos.new_zeros(sum(widths), len(self.beams.newest), dtype=torch.int32)
        self.positions = self.bos.new_zeros(len(rings), 1)
        for entry, table, position in zip(rings, ancestors.split(widths), self.positions, strict=True):
            entry |= {"ancestors": table, "position": position}
        self.beams = self.beams._replace(ancestors=ancestors)

    def _read_source(self) -> None:
        for model, state in zip(self.models, self.states, strict=True):
            model.decoder.read_source(model.encoder(self.source, None), state, len(self.beams.newest))

    def _decode(self) -> list[Tensor]:
        """Return each model's logits for the next token of every hypothesis."""
        return [
            model.decoder.step(self.beams.newest, self.step_number, state)
            for model, state in zip(self.models, self.states, strict=True)
        ]

    def give(self, source: Tensor, *, bos: int, min_len: int, max_len: int) -> None:
        """Set the batch (sentences, length), which must fit the search. Call it before ``begin``, not in a graph."""
        self.source.fill_(self.rules.pad)
        self.source[: source.shape[0], : source.shape[1]].copy_(source)
        self.bos.fill_(bos)
        for index, number in enumerate((0, min_len, max_len)):
            self.beams.limits[index].fill_(number)
        self.beams.open.fill_(False)
        self.beams.open[: source.shape[0]].fill_(True)

    def begin(self) -> None:
        """Read the source, and reset the state that the previous batch left."""
        self._read_source()
        for module, state, entry in self.kept:
            for value in () if "ring" in entry else entry.values():  # of a ring, steps read only what they wrote
                value.zero_()
            module.set_incremental_state(state, dict(entry))
        beams = self.beams
        for value in (beams.ancestors, self.positions, beams.clock):
            value.zero_()
        beams.newest.copy_(self.bos.expand_as(beams.newest))
        self.history.fill_(self.rules.pad)
        if self.rules.ngram > 1:  # fairseq's 1-grams do not include the start symbol
            self.history[:, -1].copy_(beams.newest)
        beams.scores.copy_(self.first_scores.flatten())
        beams.steps.fill_(ops.NEVER)
        beams.ranks.fill_(-math.inf)

    def step(self) -> None:
        """Add a token to every hypothesis."""
        rules, beams = self.rules, self.beams
        candidates = ops.step_candidates(
            rules.joint_logits(self._decode(), self.history),
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
        ops.search_step(*candidates, beams, eos=rules.eos, stepwise=rules.stepwise)
        if rules.ngram:
            history = self.history.index_select(0, beams.order)
            self.history.copy_(torch.cat([history[:, 1:], beams.newest.unsqueeze(1)], dim=1))
        for module, state, entry in self.kept:
            if "ring" not in entry:
                new = module.get_incremental_state(state)
                for name, value in entry.items():
                    value.copy_(new[name].index_select(1, beams.order))
                module.set_incremental_state(state, dict(entry))
