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


def forbid_repeats(logits: Tensor, tokens: Tensor, *, ngram: int, temperature: float, pad: int) -> Tensor:
    """Leave no probability to tokens that would repeat an n-gram, and the others theirs.

    The softmax is over all logits. So pad, which is never taken, gets the probability that others lose.

    Args:
        logits: (N, V).
        tokens: (N, T), those so far.
        ngram: the length of n-grams that no row may repeat; 0 for none.
        temperature: of the softmax.
    """
    if not ngram:
        return logits
    logits = logits.float()
    lost = _repeating(tokens, ngram, pad).sort(dim=1).values
    counted = F.pad(lost[:, 1:] == lost[:, :-1], (1, 0)) | (lost == pad)
    parts = logits.gather(1, lost).masked_fill(counted, -math.inf)
    together = torch.cat([logits[:, pad : pad + 1], parts], dim=1) / temperature
    left = logits.scatter(1, lost, -math.inf)
    left[:, pad : pad + 1] = temperature * together.logsumexp(dim=1, keepdim=True)
    return left


def _repeating(tokens: Tensor, ngram: int, pad: int) -> Tensor:
    """Tokens (N, windows) by which rows of tokens (N, T) would repeat an n-gram of theirs; pad where they would not."""
    tokens = F.pad(tokens, (ngram, 0), value=pad)  # at least one window
    windows, newest = tokens.unfold(1, ngram, 1), tokens[:, tokens.shape[1] - ngram + 1 :]
    return windows[:, :, -1].masked_fill((windows[:, :, :-1] != newest.unsqueeze(1)).any(dim=2), pad)
