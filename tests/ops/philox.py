"""The kernels' dropout masks, written from the text of csrc/random.h and the paper it names, without shared code."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORD = 0xFFFFFFFF


def philox(counter: Sequence[Any], key: tuple[int, int]) -> Sequence[Any]:
    """Compute Philox4x32-7 (Salmon et al., 2011): a counter of four words or arrays, and a key, give four words."""
    low, high = key
    for _ in range(7):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ low, b & WORD, (a >> 32) ^ counter[3] ^ high, a & WORD]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return counter


def kept(numbers: np.ndarray, third: Any, fourth: int, p: float, seed: int) -> Tensor:
    """Return (..., 4) factors, 1 / (1 - p) or 0, of the blocks with counters (n low, n high, third, fourth)."""
    p, n = torch.tensor(p, dtype=torch.float32).item(), numbers.astype(np.uint64)
    counter = np.broadcast_arrays(n & WORD, n >> 32, np.asarray(third, np.uint64), np.asarray(fourth, np.uint64))
    words = np.stack(philox(counter, (seed & WORD, seed >> 32 & WORD)), axis=-1)
    return torch.from_numpy(words >= round(p * 2**32)).double() / (1 - p)


def factors(shape: tuple[int, int, int, int], p: float, seed: int) -> Tensor:
    """DropConnect's factors for weights of shape (T, B, H, K)."""
    time, batch, heads, width = shape
    factors = kept(np.arange(time * batch * heads)[:, None], np.arange((width + 3) // 4), 0, p, seed)
    return factors.reshape(time, batch, heads, -1)[..., :width]


def dropout_factors(count: int, p: float, seed: int) -> Tensor:
    """Factors of the dropout in residual_norm, for ``count`` elements."""
    return kept(np.arange((count + 3) // 4), 0, 2, p, seed).flatten()[:count]


def cpu_dropout_factors(count: int, p: float, seed: int) -> Tensor:
    """Factors of dropout on a CPU: 64 elements use 16 blocks, first word 0 of each block, then word 1, and so on."""
    groups = (count + 63) // 64
    return kept(np.arange(16 * groups), 0, 1, p, seed).reshape(groups, 16, 4).transpose(1, 2).flatten()[:count]
