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


def repeating(tokens: Tensor, ngram: int, pad: int) -> Tensor:
    """Tokens (N, windows) by which rows of tokens (N, T) would repeat an n-gram of theirs; pad where they would not."""
    tokens = F.pad(tokens, (ngram, 0), value=pad)  # at least one window
    windows, newest = tokens.unfold(1, ngram, 1), tokens[:, tokens.shape[1] - ngram + 1 :]
    return windows[:, :, -1].masked_fill((windows[:, :, :-1] != newest.unsqueeze(1)).any(dim=2), pad)


def restrict(
    logits: Tensor,
    scores: Tensor,
    tokens: Tensor,
    forced: Tensor | None,
    *,
    ngram: int,
    temperature: float,
    pad: int,
) -> tuple[Tensor, Tensor]:
    """Take their probability from tokens that may not follow, and leave the others' as it is.

    Candidates' log-probabilities are a softmax over all logits. So a hypothesis' score is lowered by as much as those
    of the tokens that are left would rise.

    Args:
        logits: (N, V).
        scores: (N,), log-probabilities so far.
        tokens: (N, T), those so far.
        forced: (sentences,), the one token that may follow in a sentence's rows, or pad for any; None for any in all.
        ngram: the length of n-grams that no row may repeat; 0 for none.
        temperature: of the candidates.

    Returns:
        logits and scores, for a choice of candidates that never takes pad.
    """
    if forced is None and not ngram:
        return logits, scores
    blocked = torch.zeros_like(logits, dtype=torch.bool)
    if ngram:
        blocked.scatter_(1, repeating(tokens, ngram, pad), True)
    if forced is not None:
        only = forced.repeat_interleave(len(logits) // max(len(forced), 1)).unsqueeze(1)
        blocked |= only.ne(pad) & only.ne(torch.arange(logits.shape[1], device=only.device))
    left = logits.masked_fill(blocked, -math.inf)
    before, after = ((each.float() / temperature).logsumexp(dim=1) for each in (logits, left))
    return left, scores + (after - before).nan_to_num(nan=-math.inf, neginf=-math.inf)


def end_together(forced: Tensor | None, eos: int, *candidates: Tensor) -> tuple[Tensor, ...]:
    """Let the better half of the candidates (sentences, count) be the first, as in fairseq where all must end."""
    if forced is None:
        return candidates
    width = candidates[0].shape[1]
    same = forced.eq(eos).unsqueeze(1) & (torch.arange(width, device=forced.device) < width // 2)
    return tuple(torch.where(same, each[:, :1], each) for each in candidates)
