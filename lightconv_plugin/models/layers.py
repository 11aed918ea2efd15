"""Blocks of the encoder and the decoder (section 5.1 and Figure 2): a mixer over time where the Transformer has
self-attention, source-target attention in the decoder, a feed-forward network; each with a residual connection."""

from collections.abc import Callable
from typing import Any

from fairseq.modules import LayerNorm
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.models.mixers import build_mixer
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import Dropout, IncrementalState
from lightconv_plugin.modules.linear import apply_linear, is_plain, linear


class Residual(nn.Module):
    """x + dropout(sublayer(x)), with a layer norm after the sum, or before the sublayer.

    A block computes ``x = residual(x, sublayer(residual.sublayer_input(x)))``.
    """

    def __init__(self, stack: Any, dropout: float) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(stack.embed_dim)
        self.dropout = Dropout(dropout, self)
        self.normalize_before: bool = stack.normalize_before

    def sublayer_input(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer, (T, B, C)."""
        return self.layer_norm(x) if self.normalize_before else x

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Add the sublayer's output to x, both (T, B, C); return (T, B, C)."""
        norm = self.layer_norm
        if self.normalize_before:
            return x + self.dropout(out)
        if is_plain(norm, nn.LayerNorm) and is_plain(self.dropout, Dropout):
            return ops.residual_norm(x, out, norm.weight, norm.bias, self.dropout.probability, norm.eps)
        return norm(x + self.dropout(out))


class FeedForward(nn.Module):
    """Linear layer, activation and linear layer, at each position.

    Args:
        dim: width of the input and the output.
        hidden: width between the two linear layers.
        dropout: probability of dropout after the activation.
        activation: fairseq's name of an activation function.
        init: initialisation of the weights: "xavier", as in the other layers, or "pytorch".
    """

    def __init__(
        self, dim: int, hidden: int, *, dropout: float, activation: str = "relu", init: str = "xavier"
    ) -> None:
        super().__init__()
        self.activation = get_activation_fn(activation)
        layer: Callable[[int, int], nn.Linear] = linear if init == "xavier" else nn.Linear
        self.fc1 = layer(dim, hidden)
        self.fc2 = layer(hidden, dim)
        self.dropout = Dropout(dropout, self)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to x (..., C). Return (..., C)."""
        return apply_linear(self.fc2, self.dropout(apply_linear(self.fc1, x, self.activation)))


class Block(nn.Module):
    """The parts that encoder and decoder blocks share: the mixer and the feed-forward network."""

    def __init__(self, cfg: Any, side: str, kernel_size: int) -> None:
        super().__init__()
        stack = getattr(cfg, side)
        self.mixer = build_mixer(cfg, side, kernel_size)
        self.mixer_residual = Residual(stack, cfg.dropout)
        self.ffn = FeedForward(
            stack.embed_dim,
            stack.ffn_embed_dim,
            dropout=cfg.relu_dropout,
            activation=cfg.activation_fn,
            init=cfg.ffn_init,
        )
        self.ffn_residual = Residual(stack, cfg.dropout)


class EncoderBlock(Block):
    """Mixer and feed-forward network."""

    def __init__(self, cfg: Any, kernel_size: int) -> None:
        super().__init__(cfg, "encoder", kernel_size)

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None = None) -> Tensor:
        """Compute the block from x (T, B, C) and its padding mask (B, T). Return (T, B, C)."""
        x = self.mixer_residual(x, self.mixer(self.mixer_residual.sublayer_input(x), encoder_padding_mask))
        return self.ffn_residual(x, self.ffn(self.ffn_residual.sublayer_input(x)))

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Do nothing: there is nothing to upgrade. fairseq's encoder calls this for every layer."""


class DecoderBlock(Block):
    """Causal mixer, source-target attention (not in a language model) and feed-forward network."""

    def __init__(self, cfg: Any, kernel_size: int, *, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, "decoder", kernel_size)
        stack = cfg.decoder
        self.need_attn = True  # generation sets it to False if it needs no alignments
        self.encoder_attn: Any = None
        if not no_encoder_attn:
            self.encoder_attn = SourceAttention(
                stack.embed_dim,
                stack.attention_heads,
                source_dim=cfg.encoder.embed_dim,
                dropout=cfg.attention_dropout,
            )
            self.encoder_attn_residual = Residual(stack, cfg.dropout)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        *,
        need_attn: bool = False,
        need_head_weights: bool = False,
        **_masks: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Compute the block. The arguments and results are those of fairseq's decoder layers.

        Args:
            x: (T, B, C); with a state, the newest positions.
            encoder_out: (S, B, C_enc).
            encoder_padding_mask: (B, S).
            incremental_state: a decoder's state, see ``modules.window``.
            need_attn: also return the weights of the attention to the source.
            need_head_weights: return these weights for each head.
            _masks: masks of the future and of padding. They are ignored: the mixer is causal, and target padding
                follows the sentence.

        Returns:
            (T, B, C); the attention's weights, (B, T, S) or (H, B, T, S), or None; None.
        """
        need_attn, need_head_weights = need_attn and self.need_attn, need_head_weights and self.need_attn
        mixer_input = self.mixer_residual.sublayer_input(x)
        x = self.mixer_residual(x, self.mixer(mixer_input, incremental_state=incremental_state))
        attn = None
        if self.encoder_attn is not None:
            out, attn = self.encoder_attn(
                query=self.encoder_attn_residual.sublayer_input(x),
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn,
                need_head_weights=need_head_weights,
            )
            x = self.encoder_attn_residual(x, out)
        return self.ffn_residual(x, self.ffn(self.ffn_residual.sublayer_input(x))), attn, None

    def make_generation_fast_(self, need_attn: bool = False, **_options: Any) -> None:
        """Set if ``forward`` may return attention weights (alignments). fairseq calls this before generation."""
        self.need_attn = bool(need_attn)
