"""The stepwise length penalty of section 5.2."""

import math

import torch
from torch import Tensor


class LengthPenalty:
    """lp(Y) = ((5 + |Y|) / 6) ** alpha, of Wu et al. (2016), section 7; |Y| counts the end.

    fairseq divides a score by ``length ** len_penalty``; with this as len_penalty it divides by lp.
    """

    def __init__(self, alpha: float) -> None:
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"--stepwise-length-penalty is {alpha}, expected a number from 0 on")
        self.alpha = alpha

    def __rpow__(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha


class StepwiseBeam:
    """The beams of a batch under a length penalty that is applied at every step.

    A hypothesis Y has the score s(Y) = log P(Y | X) / lp(Y), ended or not. At each step the candidates of the step and
    all hypotheses that ended before stand in one order by s. The beam is the first ``size`` places of this order. A
    candidate without a place is dropped; one with a place ends or goes on. The search of a sentence is over when no
    candidate goes on. Its result is the best ``size`` hypotheses that ended.

    Section 5.2 says no more than "a stepwise length penalty (Paulus et al., 2017; Fan et al., 2017; Wu et al., 2016)".
    The formula is that of the third. The candidates of one step are equally long, so a penalty at every step can only
    tell them from shorter hypotheses that have ended; hence the common order. Another reading would divide the running
    sum itself, s_t = (s_(t-1) + log p(y_t)) / lp(t). Then the penalties of all steps multiply, and the score is not the
    one that Wu et al. define.

    fairseq's --lenpen has no part in its search. The first ``size`` hypotheses to end are the result, and only their
    order is by log P(Y | X) / |Y| ** lenpen.

    Attributes, each with an entry for each sentence of the batch:
        ended: s of the hypotheses that ended, in any order.
        goes_on: true if a candidate of the last step goes on.
    """

    def __init__(self, sentences: int, size: int, penalty: LengthPenalty, eos: int) -> None:
        self.size, self.penalty, self.eos = size, penalty, eos
        self.ended: list[list[float]] = [[] for _ in range(sentences)]
        self.goes_on = [True] * sentences

    def admit(self, sums: list[list[float]], words: list[list[int]], length: int) -> list[int]:
        """Take a step.

        Args:
            sums: log-probabilities of each sentence's candidates, the best first. Those without a place become -inf.
            words: the last token of each candidate.
            length: of the candidates, in tokens.

        Returns:
            for each sentence how many candidates have a place; they are its first.
        """
        places = [self._places(row, length, ended) for row, ended in zip(sums, self.ended, strict=True)]
        for sentence, (row, count) in enumerate(zip(sums, places, strict=True)):
            ending = [total for total, word in zip(row[:count], words[sentence], strict=False) if word == self.eos]
            row[count:] = [-math.inf] * (len(row) - count)
            self.ended[sentence] += [total / length**self.penalty for total in ending]
            self.goes_on[sentence] = count > len(ending)
        return places

    def keep(self, sentences: list[int]) -> None:
        """Go on with these sentences alone."""
        self.ended = [self.ended[sentence] for sentence in sentences]
        self.goes_on = [self.goes_on[sentence] for sentence in sentences]

    def _places(self, sums: list[float], length: int, ended: list[float]) -> int:
        better = sorted(ended, reverse=True)
        for candidate, total in enumerate(sums[: self.size]):
            last = self.size - 1 - candidate  # if so many more ended hypotheses are at least as good, none is left
            if total == -math.inf or (len(better) > last and better[last] >= total / length**self.penalty):
                return candidate
        return min(self.size, len(sums))


def drop(sums: Tensor, places: list[int]) -> Tensor:
    """Give the candidates without a place the score -inf, in place: sums (sentences, candidates), the best first."""
    counts = torch.tensor(places).to(sums.device, non_blocking=True).unsqueeze(1)
    return sums.masked_fill_(torch.arange(sums.shape[1], device=sums.device) >= counts, -math.inf)
