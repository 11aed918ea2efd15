"""The part of beam search that is the same with CUDA graphs and without: its options, beams and results."""

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
    "the model gives the end of a sentence no probability, or one that is not a number"
)


@dataclass(frozen=True)
class Rules:
    """Options of a search, which hold for all its batches.

    Attributes:
        penalty: a score is a log-probability over ``length ** penalty``; the end counts.
        stepwise: the penalty has a part in every step, see ``length_penalty``.
        ngram: the length of n-grams that no hypothesis may repeat; 0 for none.
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
        """Logits (N, V) whose probabilities are the mean of those of several models, but 0 for a repeated n-gram.

        Nothing here waits for a GPU.

        Args:
            logits: (N, V), of each model.
            tokens: (N, T), those so far.
        """
        joint = logits[0]
        if len(logits) > 1:
            logs = [torch.log_softmax(each.float() / self.temperature, dim=1) for each in logits]
            joint = self.temperature * torch.stack(logs).logsumexp(dim=0)
        if not self.ngram:
            return joint
        # the softmax is over all logits, so pad, which is never taken, gets the probability that others lose
        joint = joint.float()
        lost = self._repeating(tokens).sort(dim=1).values
        counted = F.pad(lost[:, 1:] == lost[:, :-1], (1, 0)) | (lost == self.pad)
        parts = joint.gather(1, lost).masked_fill(counted, -math.inf)
        together = torch.cat([joint[:, self.pad : self.pad + 1], parts], dim=1) / self.temperature
        left = joint.scatter(1, lost, -math.inf)
        left[:, self.pad : self.pad + 1] = self.temperature * together.logsumexp(dim=1, keepdim=True)
        return left

    def _repeating(self, tokens: Tensor) -> Tensor:
        """Tokens (N, windows) by which rows of tokens (N, T) would repeat an n-gram; pad where they would not."""
        tokens = F.pad(tokens, (self.ngram, 0), value=self.pad)  # at least one window
        windows, newest = tokens.unfold(1, self.ngram, 1), tokens[:, tokens.shape[1] - self.ngram + 1 :]
        repeated = (windows[:, :, :-1] == newest.unsqueeze(1)).all(dim=2)
        return windows[:, :, -1].masked_fill(~repeated, self.pad)

    def beams(self, sentences: int, longest: int, device: Any) -> ops.Beams:
        """Beams before the first step of a search for hypotheses of up to ``longest`` tokens, the end included."""
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
        """Hypotheses of the first sentences in fairseq's form, on the CPU, each sentence's best first.

        Raises:
            RuntimeError: a sentence has not come to its end.
        """
        if stuck := int(beams.open.sum()):
            raise RuntimeError(_NO_END.format(stuck, int(beams.limits[2])))
        last, row, totals = (held[:sentences].cpu() for held in (beams.steps, beams.rows, beams.totals))
        longest = int(last.max()) + 1
        words, parents, sums = (table[:longest].cpu() for table in (beams.words, beams.parents, beams.sums))
        path = torch.zeros(longest, row.numel(), dtype=torch.long)  # of each step the row, which goes on as that word
        row, before = row.flatten(), last.flatten() > torch.arange(longest).unsqueeze(1)
        for step in reversed(range(longest - 1)):
            path[step] = row
            row = torch.where(before[step], parents[step].gather(0, row), row)

        penalties = torch.tensor([length**self.penalty for length in range(1, longest + 1)], dtype=totals.dtype)
        scores = totals / penalties[last]
        best = (-scores).masked_fill(last == ops.NEVER, math.inf).sort(dim=1, stable=True).indices
        last, scores, totals = (each.gather(1, best) for each in (last, scores, totals))
        of_best = best.unsqueeze(2).expand(-1, -1, longest)
        words, sums = (each.gather(1, path).t().reshape(*last.shape, -1).gather(1, of_best) for each in (words, sums))
        end = last.clamp(min=0).unsqueeze(2)
        words.scatter_(2, end, self.eos)
        sums.scatter_(2, end, totals.unsqueeze(2))
        sums[:, :, 1:] = sums[:, :, 1:] - sums[:, :, :-1]

        there, written = last != ops.NEVER, torch.arange(longest) <= last.unsqueeze(2)
        lengths, none = (last[there] + 1).tolist(), torch.empty(0)
        parts = zip(words[written].split(lengths), scores[there], sums[written].split(lengths), strict=True)
        found = (
            {"tokens": own, "score": score, "attention": none, "alignment": none, "positional_scores": each}
            for own, score, each in parts
        )
        return [list(itertools.islice(found, count)) for count in there.sum(dim=1).tolist()]
