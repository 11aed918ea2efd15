"""Self-attention, over all positions or within a window: the baselines of Table 3."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.modules.dropout import Dropout
from lightconv_plugin.modules.linear import apply_linear, linear
from lightconv_plugin.modules.window import IncrementalState, InputWindow, check_call, check_heads, check_width


class SelfAttention(InputWindow):
    """Multi-head self-attention (Vaswani et al., 2017), 4 * C * C + 4 * C parameters.

    With a window of K, a position sees the positions that a convolution of width K sees: itself and K - 1 to the left
    if causal, otherwise K // 2 to both sides.

    Args:
        embed_dim: C.
        heads: a divisor of C.
        window: K; None for all positions.
        causal: see nothing to the right.
        dropout: probability of dropout of the attention weights.

    Raises:
        ValueError: heads that do not divide the channels, a window that is even and not causal, or below 1, or
            a dropout outside [0, 1].
        TypeError: a size that is not a whole number, or a dropout that is not a number.
    """

    def __init__(self, embed_dim: int, heads: int, *, window: int | None, causal: bool, dropout: float = 0.0) -> None:
        super().__init__(window, causal=causal)
        check_heads(embed_dim, heads)
        if window is not None:
            check_width(window, causal=causal)
        self.embed_dim, self.heads = embed_dim, heads
        self.dropout = Dropout(dropout, self)
        # as in fairseq: initialised like one matrix with 3 * C outputs, which the paper's models had
        self.q_proj = linear(embed_dim, embed_dim, gain=0.5**0.5)
        self.k_proj = linear(embed_dim, embed_dim, gain=0.5**0.5)
        self.v_proj = linear(embed_dim, embed_dim, gain=0.5**0.5)
        self.out_proj = linear(embed_dim, embed_dim)

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
        q, k, v = (apply_linear(layer, x) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if incremental_state is not None:  # it holds keys and values, so each position is projected once
            self.check_step(padding_mask)

            def step(q: Tensor, kv: Tensor) -> Tensor:
                k, v = self.push(kv, incremental_state).chunk(2, dim=2)
                return self._attend(q, k, v, None)

            attended = self.each_position(step, q, torch.cat([k, v], dim=2))
        else:
            seen = self._visible(x.shape[0], x.device)  # len() would fix the length of an exported graph
            if padding_mask is not None:
                seen = seen & ~padding_mask[:, None, None, :]
            attended = self._attend(q, k, v, seen)
        return apply_linear(self.out_proj, attended)

    if TYPE_CHECKING:

        def __call__(
            self, x: Tensor, padding_mask: Tensor | None = None, incremental_state: IncrementalState | None = None
        ) -> Tensor: ...

    def _visible(self, time: int, device: torch.device) -> Tensor:
        """Return (1, 1, T, T), true where position i (row) sees position j."""
        offset = torch.arange(time, device=device)
        offset = offset[None, :] - offset[:, None]
        if self.causal:
            to_left, to_right = self.window_size or time, 1
        else:
            to_left = to_right = (self.window_size // 2 + 1) if self.window_size is not None else time
        return ((offset < to_right) & (offset > -to_left))[None, None]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Return the heads' outputs (T, B, C) for queries (T, B, C), keys and values (S, B, C)."""

        def split(x: Tensor) -> Tensor:  # (T, B, C) -> (B, H, T, R)
            return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).permute(1, 2, 0, 3)

        out, _ = ops.attention(split(q), split(k), split(v), seen, self.dropout.probability)
        return out.permute(2, 0, 1, 3).reshape(q.shape)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, {super().extra_repr()}"
