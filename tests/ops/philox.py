"""DropConnect's mask, from the text of csrc/random.h and the paper it names; no code is shared with what is tested."""

import torch
from torch import Tensor

WORD = 0xFFFFFFFF


def philox(counter: list[int], key: tuple[int, int], rounds: int = 7) -> list[int]:
    """Philox4x32 (Salmon et al., 2011): four words from a counter of four and a key of two."""
    low, high = key
    for _ in range(rounds):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ low, b & WORD, (a >> 32) ^ counter[3] ^ high, a & WORD]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return counter


def dropout_factors(count: int, p: float, seed: int) -> Tensor:
    """Return what residual_norm multiplies each of ``count`` numbers with: 1 / (1 - p) or 0, float64."""
    p, key = torch.tensor(p, dtype=torch.float32).item(), (seed & WORD, seed >> 32 & WORD)
    words = [philox([quad & WORD, quad >> 32, 0, 2], key) for quad in range((count + 3) // 4)]
    return (torch.tensor(words).flatten()[:count] >= round(p * 2**32)).double() / (1 - p)


def factors(shape: tuple[int, int, int, int], p: float, seed: int) -> Tensor:
    """Return what each of (T, B, H, K) weights is multiplied with: 1 / (1 - p) or 0, float64."""
    time, batch, heads, width = shape
    p = torch.tensor(p, dtype=torch.float32).item()
    key = (seed & WORD, seed >> 32 & WORD)
    words = [
        philox([n & WORD, n >> 32, quad, 0], key)[:4]
        for n in range(time * batch * heads)
        for quad in range((width + 3) // 4)
    ]
    kept = torch.tensor(words).reshape(time, batch, heads, -1)[..., :width] >= round(p * 2**32)
    return kept.double() / (1 - p)
