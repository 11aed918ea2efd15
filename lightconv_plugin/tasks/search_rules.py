"""The part of beam search that is the same with CUDA graphs and without: its options, its state and its results.

A search of S sentences with a beam of B has N = S * B rows. A row is an unfinished hypothesis; those of a sentence are
adjacent, the best first. For every step, the state (``ops.Beams``) stores the token that each row added, and the row of
the previous step that it continued. For two sentences and a beam of 3:

    row          0   1   2 | 3   4   5
    sentence     0   0   0 | 1   1   1        row // B
    rank         0   1   2 | 0   1   2        row % B
    step 0  words       a   b   c | ...
    step 1  parents     0   0   2 | ...       row 1 continues row 0 of step 0: its tokens are a e
            words       d   e   f | ...
    step 2  parents     1   0   1 | ...       row 0 continues row 1 of step 1: its tokens are a e g
            words       g   h   i | ...

A hypothesis that ended in step t is identified by t and by the row of step t - 1 that it continued: (3, 0) is a e g and
the end. Following ``parents`` back to step 0 gives its tokens. Before step 0, all rows of a sentence are the same.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv_plugin import ops

Hypothesis = dict[str, Tensor]

_NO_END = (
    "no hypothesis of {} sentences could end after {} tokens: "
    "the model gives the end of a sentence a probability of 0 or NaN"
)


@dataclass(frozen=True)
class Rules:
    """Options of a search, which hold for all its batches.

    Attributes:
        penalty: a score is a log-probability divided by ``length ** penalty``; the length includes the end.
        stepwise: the penalty is applied at every step, see ``length_penalty``.
        ngram: the length of n-grams that no hypothesis may repeat; 0 for no limit.
    """

    beam: int
    pad: int
    eos: int
    unk: int
    unk_penalty: float = 0.0
    temperature: float = 1.0
    penalty: Any = 1.0
    stepwise: bool = False
    ngram: int = 0

    def joint_logits(self, logits: list[Tensor], tokens: Tensor) -> Tensor:
        """Return logits (N, V) of the mean of the models' probabilities, with 0 for tokens that repeat an n-gram.

        The host does not wait for a GPU here.

        Args:
            logits: one tensor (N, V) per model.
            tokens: (N, T), the tokens so far.
        """
        joint = logits[0]
        if len(logits) > 1:
            log_probabilities = [torch.log_softmax(model.float() / self.temperature, dim=1) for model in logits]
            joint = self.temperature * torch.stack(log_probabilities).logsumexp(dim=0)
        if not self.ngram:
            return joint
        # the softmax is over all logits, so pad, which is never chosen, gets the probability of the banned tokens
        joint = joint.float()
        banned = self._repeating(tokens).sort(dim=1).values
        is_counted = F.pad(banned[:, 1:] == banned[:, :-1], (1, 0)) | (banned == self.pad)
        lost = joint.gather(1, banned).masked_fill(is_counted, -math.inf)
        of_pad = torch.cat([joint[:, self.pad : self.pad + 1], lost], dim=1) / self.temperature
        allowed = joint.scatter(1, banned, -math.inf)
        allowed[:, self.pad : self.pad + 1] = self.temperature * of_pad.logsumexp(dim=1, keepdim=True)
        return allowed

    def _repeating(self, tokens: Tensor) -> Tensor:
        """Return the tokens (N, windows) by which rows (N, T) would repeat an n-gram; pad where they would not."""
        tokens = F.pad(tokens, (self.ngram, 0), value=self.pad)  # at least one window
        windows, newest = tokens.unfold(1, self.ngram, 1), tokens[:, tokens.shape[1] - self.ngram + 1 :]
        repeated = (windows[:, :, :-1] == newest.unsqueeze(1)).all(dim=2)
        return windows[:, :, -1].masked_fill(~repeated, self.pad)

    def beams(self, sentences: int, longest: int, device: Any) -> ops.Beams:
        """Return the state before the first step of a search for hypotheses of up to ``longest`` tokens and the end."""
        rows = sentences * self.beam

        def make(*shape: int, value: float = 0, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        penalties = [length**self.penalty if self.stepwise else 1.0 for length in range(1, longest + 1)]
        return ops.Beams(
            limits=make(3),
            clock=make(sentences),
            penalties=torch.tensor(penalties, dtype=torch.float64).to(device),
            newest=make(rows),
            scores=make(rows, dtype=torch.float32),
            order=make(rows),
            words=make(longest, rows),
            parents=make(longest, rows),
            sums=make(longest, rows, dtype=torch.float32),
            steps=make(sentences, self.beam, value=ops.NEVER),
            rows=make(sentences, self.beam),
            totals=make(sentences, self.beam, dtype=torch.float32),
            ranks=make(sentences, self.beam, value=-math.inf, dtype=torch.float64),
            open=make(sentences, value=True, dtype=torch.bool),
            ancestors=make(0, rows, dtype=torch.int32),
        )

    def results(self, beams: ops.Beams, sentences: int) -> list[list[Hypothesis]]:
        """Return the hypotheses of the first ``sentences`` sentences in fairseq's form, on the CPU, the best first.

        In the comments, S is the number of sentences, B the beam, T the number of steps of the longest hypothesis, and
        E = S * B the number of slots for finished hypotheses.

        Raises:
            RuntimeError: no hypothesis of a sentence could end.
        """
        if unfinished := int(beams.open.sum()):
            raise RuntimeError(_NO_END.format(unfinished, int(beams.limits[2])))
        end_step, row, totals = (slots[:sentences].cpu() for slots in (beams.steps, beams.rows, beams.totals))  # (S, B)
        longest = int(end_step.max()) + 1
        words, parents, sums = (table[:longest].cpu() for table in (beams.words, beams.parents, beams.sums))  # (T, N)
        rows = self._trace_back(parents, row.flatten(), end_step.flatten(), longest)

        penalties = torch.tensor([length**self.penalty for length in range(1, longest + 1)], dtype=totals.dtype)
        scores = totals / penalties[end_step]
        # the best first
        order = (-scores).masked_fill(end_step == ops.NEVER, math.inf).sort(dim=1, stable=True).indices
        end_step, scores, totals = (value.gather(1, order) for value in (end_step, scores, totals))
        order = order.unsqueeze(2).expand(-1, -1, longest)
        # from (T, N) to (S, B, T), by the rows of each hypothesis
        words, sums = (
            table.gather(1, rows).t().reshape(*end_step.shape, -1).gather(1, order) for table in (words, sums)
        )
        last = end_step.clamp(min=0).unsqueeze(2)
        words.scatter_(2, last, self.eos)
        sums.scatter_(2, last, totals.unsqueeze(2))
        sums[:, :, 1:] = sums[:, :, 1:] - sums[:, :, :-1]  # from sums of log-probabilities to one per token

        has_ended, is_written = end_step != ops.NEVER, torch.arange(longest) <= end_step.unsqueeze(2)
        lengths, empty = (end_step[has_ended] + 1).tolist(), torch.empty(0)
        hypotheses = (
            {
                "tokens": tokens,
                "score": score,
                "attention": empty,
                "alignment": empty,
                "positional_scores": token_scores,
            }
            for tokens, score, token_scores in zip(
                words[is_written].split(lengths), scores[has_ended], sums[is_written].split(lengths), strict=True
            )
        )
        return [list(itertools.islice(hypotheses, count)) for count in has_ended.sum(dim=1).tolist()]

    @staticmethod
    def _trace_back(parents: Tensor, row: Tensor, end_step: Tensor, longest: int) -> Tensor:
        """Return the rows (T, E) whose tokens make up E hypotheses; after the end of a hypothesis, any row.

        Args:
            parents: (T, N).
            row: (E,), the last row of each hypothesis.
            end_step: (E,), the step in which it ended.
        """
        rows = torch.zeros(longest, len(row), dtype=torch.long)
        goes_on = end_step > torch.arange(longest).unsqueeze(1)  # (T, E)
        for step in reversed(range(longest - 1)):
            rows[step] = row
            row = torch.where(goes_on[step], parents[step].gather(0, row), row)
        return rows
