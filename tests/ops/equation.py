"""The paper's equations as loops, which share no code with the operators; and packed sentences one by one."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lightconv_plugin.ops import reference


def softmax(logits: list[float]) -> list[float]:
    """Softmax over the kernel (section 3)."""
    exps = [math.exp(value) for value in logits]
    return [value / sum(exps) for value in exps]


def convolve(x: Tensor, weight: Tensor, padding_l: int) -> Tensor:
    """Convolve x, (T, B, C) in float64, with the softmax of the logits ``weight``, (T, B, H, K).

    The paper counts channels from 1 and gives channel c the head ceil(c * H / C).
    """
    time, batch, channels = x.shape
    heads, width = weight.shape[2:]
    out = torch.zeros(time, batch, channels, dtype=torch.float64)
    for i in range(time):
        for b in range(batch):
            kernels = [softmax(weight[i, b, h].tolist()) for h in range(heads)]
            for c in range(1, channels + 1):
                kernel = kernels[math.ceil(c * heads / channels) - 1]
                for j in range(width):
                    if 0 <= i + j - padding_l < time:
                        out[i, b, c - 1] += kernel[j] * x[i + j - padding_l, b, c - 1]
    return out


def packed(
    name: str, x: Tensor, weight: Tensor, cu_seqlens: Tensor, *, initial_state: Tensor | None = None, **options: Any
) -> Tensor:
    """Convolve packed sentences one by one with the reference implementation of ``name``.

    x: (total, C), sentences one after another; weight: (H, K) or (total, H, K); initial_state: (padding_l, N, C).
    """
    outputs = []
    for n, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
        kernels = weight if weight.ndim == 2 else weight[begin:end].unsqueeze(1)
        state = None if initial_state is None else initial_state[:, n : n + 1]
        out = getattr(reference, name)(x[begin:end].unsqueeze(1), kernels, initial_state=state, **options)
        outputs.append(out.squeeze(1))
    return torch.cat(outputs)
