"""Logits of a step of beam search, made ready for the choice of its candidates. Nothing here waits for a GPU."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def joint_logits(logits: list[Tensor], temperature: float) -> Tensor:
    """Logits (N, V) whose probabilities, at this temperature, are the mean of those of several models' logits."""
    if len(logits) == 1:
        return logits[0]
    logs = [torch.log_softmax(each.float() / temperature, dim=1) for each in logits]
    return temperature * torch.stack(logs).logsumexp(dim=0)


def restrict(
    logits: Tensor, tokens: Tensor, forced: Tensor | None, *, ngram: int, temperature: float, pad: int
) -> Tensor:
    """Leave no probability to tokens that may not follow, and the others theirs.

    The softmax is over all logits. So pad, which is never taken, gets the probability that others lose.

    Args:
        logits: (N, V).
        tokens: (N, T), those so far.
        forced: (sentences,), the one token that may follow in a sentence's rows, or pad for any; None for any in all.
        ngram: the length of n-grams that no row may repeat; 0 for none.
        temperature: of the softmax.
    """

    def joint(parts: Tensor) -> Tensor:  # the logit of as much probability as these logits have together
        return temperature * (parts / temperature).logsumexp(dim=1, keepdim=True)

    if forced is not None:
        logits = logits.float()
        only = forced.repeat_interleave(len(logits) // max(len(forced), 1)).unsqueeze(1)
        left = torch.full_like(logits, -math.inf).scatter(1, only, logits.gather(1, only))
        left[:, pad : pad + 1] = joint(logits.scatter(1, only, -math.inf))
        logits = torch.where(only == pad, logits, left)
    if ngram:
        logits = logits.float()
        lost = _repeating(tokens, ngram, pad).sort(dim=1).values
        counted = F.pad(lost[:, 1:] == lost[:, :-1], (1, 0)) | (lost == pad)
        parts = logits.gather(1, lost).masked_fill(counted, -math.inf)
        left = logits.scatter(1, lost, -math.inf)
        left[:, pad : pad + 1] = joint(torch.cat([logits[:, pad : pad + 1], parts], dim=1))
        logits = left
    return logits


def _repeating(tokens: Tensor, ngram: int, pad: int) -> Tensor:
    """Tokens (N, windows) by which rows of tokens (N, T) would repeat an n-gram of theirs; pad where they would not."""
    tokens = F.pad(tokens, (ngram, 0), value=pad)  # at least one window
    windows, newest = tokens.unfold(1, ngram, 1), tokens[:, tokens.shape[1] - ngram + 1 :]
    return windows[:, :, -1].masked_fill((windows[:, :, :-1] != newest.unsqueeze(1)).any(dim=2), pad)


def end_together(forced: Tensor | None, eos: int, *candidates: Tensor) -> tuple[Tensor, ...]:
    """Let the better half of the candidates (sentences, count) be the first, as in fairseq where all must end."""
    if forced is None:
        return candidates
    width = candidates[0].shape[1]
    same = forced.eq(eos).unsqueeze(1) & (torch.arange(width, device=forced.device) < width // 2)
    return tuple(torch.where(same, each[:, :1], each) for each in candidates)
