"""Blocks of the encoder and the decoder (section 5.1 and Figure 2): a mixer over time where the Transformer has
self-attention, source-target attention in the decoder, a feed-forward network; each with a residual connection."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from fairseq.models import BaseFairseqModel
from fairseq.modules import LayerNorm
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.models import block_step, hub
from lightconv_plugin.models.mixers import build_mixer
from lightconv_plugin.models.resolve import add_arguments
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import (
    ConvModule,
    Dropout,
    DynamicConv,
    IncrementalState,
    LightweightConv,
    OwnEntry,
    apply_linear,
    is_plain,
    linear,
)


class Residual(nn.Module):
    """x + dropout(sublayer(x)), with a layer norm after the sum, or before the sublayer."""

    def __init__(self, dim: int, *, dropout: float, normalize_before: bool) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(dim)
        self.dropout = Dropout(dropout, self)
        self.normalize_before = normalize_before

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x and the output of the sublayer, (T, B, C), to (T, B, C)."""
        norm = self.layer_norm
        if self.normalize_before or not is_plain(norm, nn.LayerNorm) or not is_plain(self.dropout, Dropout):
            x = x + self.dropout(sublayer(norm(x) if self.normalize_before else x))
            return x if self.normalize_before else norm(x)
        return ops.residual_norm(x, sublayer(x), norm.weight, norm.bias, self.dropout.probability, norm.eps)


class FeedForward(nn.Module):
    """Linear, activation, Linear at each position; ``activation`` is one of fairseq's names.

    ``init``: "xavier", as everywhere in these models, or "pytorch".
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
        """x: (..., C) gives (..., C)."""
        return apply_linear(self.fc2, self.dropout(apply_linear(self.fc1, x, self.activation)))


class Block(nn.Module):
    """The parts that encoder and decoder blocks share: the mixer and the feed-forward network."""

    def __init__(self, cfg: Any, side: str, kernel_size: int) -> None:
        super().__init__()
        stack = getattr(cfg, side)
        self.residual_options = {"dropout": cfg.dropout, "normalize_before": stack.normalize_before}
        self.mixer = build_mixer(cfg, side, kernel_size)
        self.mixer_residual = Residual(stack.embed_dim, **self.residual_options)
        how: dict[str, Any] = {"dropout": cfg.relu_dropout, "activation": cfg.activation_fn, "init": cfg.ffn_init}
        self.ffn = FeedForward(stack.embed_dim, stack.ffn_embed_dim, **how)
        self.ffn_residual = Residual(stack.embed_dim, **self.residual_options)

    def mix(self, x: Tensor, *mask: Tensor | None, **state: IncrementalState | None) -> Tensor:
        """The mixer in its residual connection: (T, B, C) to (T, B, C)."""
        return self.mixer_residual(x, lambda y: self.mixer(y, *mask, **state))

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward network in its residual connection: (T, B, C) to (T, B, C)."""
        return self.ffn_residual(x, self.ffn)


class EncoderBlock(Block):
    """Mixer, feed-forward."""

    def __init__(self, cfg: Any, kernel_size: int) -> None:
        super().__init__(cfg, "encoder", kernel_size)

    def forward(self, x: Tensor, encoder_padding_mask: Tensor | None = None) -> Tensor:
        """x: (T, B, C) and its padding mask (B, T) give (T, B, C)."""
        x = self.mix(x, encoder_padding_mask)
        return self.feed(x)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Nothing to upgrade; fairseq's encoder asks every layer."""


# The parts of a decoder's block that one operator can do: the classes that they may have, by the last part of the name.
KNOWN_PARTS: dict[str, tuple[type[nn.Module], ...]] = {
    "mixer": (ConvModule,),
    "conv": (LightweightConv, DynamicConv),
    "encoder_attn": (SourceAttention,),
    "ffn": (FeedForward,),
    "layer_norm": (nn.LayerNorm,),
    **dict.fromkeys(("mixer_residual", "encoder_attn_residual", "ffn_residual"), (Residual,)),
    **dict.fromkeys(("dropout", "input_dropout", "weight_dropout", "dropout_module"), (Dropout,)),
    **dict.fromkeys(("in_proj", "weight_linear", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), (nn.Linear,)),
}


class DecoderBlock(OwnEntry, Block):
    """Causal mixer, source-target attention (unless a language model), feed-forward."""

    def __init__(self, cfg: Any, kernel_size: int, *, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, "decoder", kernel_size)
        stack = cfg.decoder
        self.need_attn = True  # until generation says that nobody will look at it
        self.encoder_attn: Any = None
        if not no_encoder_attn:
            self.encoder_attn = SourceAttention(
                stack.embed_dim,
                stack.attention_heads,
                source_dim=cfg.encoder.embed_dim,
                dropout=cfg.attention_dropout,
            )
            self.encoder_attn_residual = Residual(stack.embed_dim, **self.residual_options)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """One block, called as fairseq's decoder calls its layers.

        Args:
            x: (T, B, C); with a state, the newest positions.
            encoder_out: (S, B, C_enc), its padding mask (B, S).
            self_attn_mask: ignored: a causal mixer needs no mask.
            self_attn_padding_mask: ignored: target padding follows the sentence, where nothing real looks at it.

        Returns:
            (T, B, C); the attention's weights, (H, B, T, S) with need_head_weights, if asked for; None.
        """
        need_attn, need_head_weights = need_attn and self.need_attn, need_head_weights and self.need_attn
        if incremental_state is not None:
            stepped = self._step_at_once(x, incremental_state, need_attn or need_head_weights)
            if stepped is not None:
                return stepped, None, None
        x = self.mix(x, incremental_state=incremental_state)
        attn: Tensor | None = None
        if self.encoder_attn is not None:

            def attend(query: Tensor) -> Tensor:
                nonlocal attn
                out, attn = self.encoder_attn(
                    query=query,
                    key=encoder_out,
                    value=encoder_out,
                    key_padding_mask=encoder_padding_mask,
                    incremental_state=incremental_state,
                    static_kv=True,
                    need_weights=need_attn,
                    need_head_weights=need_head_weights,
                )
                return out

            x = self.encoder_attn_residual(x, attend)
        return self.feed(x), attn, None

    def _step_at_once(self, x: Tensor, incremental_state: IncrementalState, need_weights: bool) -> Tensor | None:
        """One newest position in one operator; None where the parts must be run one after the other."""
        entry: Any = incremental_state.get(self._owner)
        if entry is None:  # a search begins: it is decided for all of it, and the first step makes the parts' states
            at_once: Any = block_step.can_step(self, KNOWN_PARTS, x[:1])
            incremental_state[self._owner] = {"at_once": at_once}
            return None
        if not entry["at_once"] or need_weights or x.shape[0] != 1:
            return None
        return block_step.step(self, x, incremental_state)

    def make_generation_fast_(self, need_attn: bool = False, **_options: Any) -> None:
        """fairseq's call before generation: whether alignments will be asked for."""
        self.need_attn = bool(need_attn)


class PluginModel(BaseFairseqModel):
    """Base of both models: their flags, and loading for plain text."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the flags of the model's dataclass, which ``register_model`` keeps under this name."""
        add_arguments(parser, getattr(cls, "__dataclass")())

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, checkpoint_file: str = "model.pt", data_name_or_path: str = ".", **options: Any
    ) -> Any:
        """Load a trained model for plain text; ``hub.from_pretrained`` says more."""
        return hub.from_pretrained(cls.hub_models(), model_name_or_path, checkpoint_file, data_name_or_path, **options)
