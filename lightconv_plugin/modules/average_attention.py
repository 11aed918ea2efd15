"""Averaged attention (Zhang et al., 2018, "Accelerating Neural Transformer via an Average Attention Network")."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv_plugin.modules.dropout import Dropout
from lightconv_plugin.modules.linear import apply_linear, linear
from lightconv_plugin.modules.window import IncrementalState, StepByStep, check_call
from lightconv_plugin.ops.checks import check_whole
from lightconv_plugin.ops.state import check_held


class AverageAttention(StepByStep):
    """Mean of the visible positions, passed through a feed-forward network and combined with the input by gates.

    g_j = FFN(mean of y_k), i and f = sigmoid(W [y_j; g_j]), h_j = i * y_j + f * g_j: C * (2 * hidden + 4 * C) weights.
    The mean is over the positions up to j if causal, otherwise over the whole sentence. Zhang et al. have only the
    causal form. Table 3 needs both.

    Args:
        embed_dim: C.
        hidden: width of the feed-forward network. Table 3's parameter counts imply that it is the width of the block's
            feed-forward network.
        causal: average only over the positions up to the current one.
        dropout: probability of dropout after the ReLU.

    Raises:
        ValueError: a dropout outside [0, 1].
        TypeError: a size that is not a whole number, or a dropout that is not a number.
    """

    def __init__(self, embed_dim: int, hidden: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__(causal=causal)
        check_whole("embed_dim", embed_dim)
        check_whole("hidden", hidden)
        self.embed_dim = embed_dim
        self.fc1 = linear(embed_dim, hidden)
        self.fc2 = linear(hidden, embed_dim)
        self.gate = linear(2 * embed_dim, 2 * embed_dim)
        self.dropout = Dropout(dropout, self)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
    ) -> Tensor:
        """Mix x (T, B, C) with padding mask (B, T). Return (T, B, C). With a state, x holds the newest positions.

        Raises:
            ValueError: x or the mask has a wrong shape or type; or in a step there is a mask, the state is of other
                inputs, or the module is not causal.
            TypeError: the incremental state is not a dict.
        """
        check_call(self, self.embed_dim, x, padding_mask, incremental_state)
        if incremental_state is None:
            mean = self._mean(x, padding_mask)
        else:
            self.check_step(padding_mask)
            mean = self.each_position(lambda newest: self._step(newest, incremental_state), x)
        g = apply_linear(self.fc2, self.dropout(F.relu(apply_linear(self.fc1, mean))))
        input_gate, forget_gate = torch.sigmoid(apply_linear(self.gate, torch.cat([x, g], dim=-1))).chunk(2, dim=-1)
        return input_gate * x + forget_gate * g

    if TYPE_CHECKING:

        def __call__(
            self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
        ) -> Tensor: ...

    def _mean(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        # at least float32: in a sum of thousands of 16-bit numbers the later terms would be lost
        wide = x if x.dtype == torch.float64 else x.float()
        real = torch.ones_like(wide[:, :, :1])
        if padding_mask is not None:
            real = real.masked_fill(padding_mask.t().unsqueeze(-1), 0)
        total, count = wide * real, real
        if self.causal:
            total, count = total.cumsum(0), count.cumsum(0)
        else:
            total, count = total.sum(0, keepdim=True), count.sum(0, keepdim=True)
        return (total / count.clamp(min=1)).to(x.dtype).expand_as(x)

    def _step(self, x: Tensor, incremental_state: IncrementalState) -> Tensor:
        """Compute one position in constant time, from the sum of the inputs so far and their number."""
        saved = self.get_incremental_state(incremental_state)
        total = x if x.dtype == torch.float64 else x.float()
        count = torch.ones_like(total[:, :, :1])
        if saved is not None:
            check_held(saved["total"], x)
            total, count = total + saved["total"], count + saved["count"]
        self.set_incremental_state(incremental_state, {"total": total, "count": count})
        return (total / count).to(x.dtype)
