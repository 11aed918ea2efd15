"""The two graphs of decoding: the encoder, and one step of the decoder whose state comes in and goes out.

They call the model's own modules. Those that read the values of a tensor, or whose state is not a fixed number of
tensors, are exchanged: positions, attention in a step, embeddings of several widths.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from lightconv_plugin.models.encoder_decoder import LightConvDecoder, LightConvEncoder
from lightconv_plugin.models.layers import DecoderBlock, EncoderBlock
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import AverageAttention, DynamicConv, LightweightConv, SelfAttention, StandardConv
from lightconv_plugin.modules.window import IncrementalState, StepByStep
from lightconv_plugin.ops.fused.train import masked_softmax


class ExportError(Exception):
    """A model that cannot be exported; the message says what was found and what is expected."""


@dataclass(frozen=True)
class State:
    """A tensor (length, N, width) that a decoder keeps from step to step, for its N hypotheses."""

    module: StepByStep
    part: str  # of the module's entry in fairseq's incremental state
    length: int | None  # of zeros before the first step; None: nothing then, and each step adds one
    width: int


class Encoder(nn.Module):
    """(B, S) tokens to everything that the steps read of the source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.encoder: Any = model.encoder
        _check(self.encoder, LightConvEncoder, EncoderBlock)
        self.encoder.embed_positions = _positions(self.encoder)
        self.source = nn.ModuleList(SourceKeys(layer.encoder_attn) for layer in model.decoder.layers)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Give the padding (B, S), then each layer's keys (B, H, R, S) and values (B, H, S, R)."""
        encoder = self.encoder
        padding = tokens.eq(encoder.padding_idx)
        x = encoder.forward_embedding(tokens)[0] * (~padding).unsqueeze(-1)
        x = x.transpose(0, 1)
        for layer in encoder.layers:
            x = layer(x, encoder_padding_mask=padding)
        if encoder.layer_norm is not None:
            x = encoder.layer_norm(x)
        return [padding, *(tensor for source in self.source for tensor in source(x))]


class Step(nn.Module):
    """The newest token of each hypothesis to log-probabilities of the next, and the next step's state."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder: Any = copy.deepcopy(model.decoder)
        _check(self.decoder, LightConvDecoder, DecoderBlock)
        decoder = self.decoder
        decoder.embed_positions = _positions(decoder)
        for layer in decoder.layers:
            if layer.encoder_attn is not None:
                layer.encoder_attn = SourceAttentionStep(layer.encoder_attn)
            if isinstance(layer.mixer, SelfAttention):
                layer.mixer = SelfAttentionStep(layer.mixer)
        self.states = [state for layer in decoder.layers for state in _states(layer)]
        softmax = decoder.adaptive_softmax
        self.vocab_size: int = decoder.output_projection.out_features if softmax is None else softmax.vocab_size

    def forward(self, tokens: Tensor, parents: Tensor, position: Tensor, *given: Tensor) -> list[Tensor]:
        """Take one step.

        Args:
            tokens: (B, beam), the newest token of each hypothesis; the hypotheses of a sentence follow each other.
            parents: (B, beam), the place among the last step's N hypotheses of the one that each continues.
            position: (1,), how many tokens a hypothesis has before the newest.
            given: what ``Encoder`` gives, nothing for a language model; then the ``states``, (length, N, width). In
                the first step N is B, and the states are zero.

        Returns:
            log-probabilities (B, beam, V), then the states (length, B * beam, width).
        """
        decoder, order = self.decoder, parents.reshape(-1)
        count = len(given) - len(self.states)
        source, states = given[:count], given[count:]
        incremental_state: IncrementalState = {}
        for state, tensor in zip(self.states, states, strict=True):
            entry = state.module.get_incremental_state(incremental_state) or {}
            entry = {**entry, state.part: tensor.index_select(1, order)}
            state.module.set_incremental_state(incremental_state, entry)
        positions = None if decoder.embed_positions is None else decoder.embed_positions.at(position)
        x = decoder.embed(tokens.reshape(1, -1), positions)
        for number, layer in enumerate(decoder.layers):
            if source:
                keys, values = source[1 + 2 * number : 3 + 2 * number]
                layer.encoder_attn.hold(incremental_state, tokens.shape[1], keys, values)
            x = layer(x, None, source[0] if source else None, incremental_state)[0]
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        log_probs = self._log_probs(x)
        kept = [state.module.get_incremental_state(incremental_state)[state.part] for state in self.states]
        return [log_probs.reshape(*tokens.shape, log_probs.shape[-1]), *kept]

    def _log_probs(self, features: Tensor) -> Tensor:
        """(1, N, C) to (1, N, V)."""
        if self.decoder.adaptive_softmax is not None:
            return self.decoder.adaptive_softmax.get_log_prob(features, None)
        return torch.log_softmax(self.decoder.output_layer(features).float(), dim=-1)


class Positions(nn.Module):
    """Embeddings of positions, read from a table of a fixed length."""

    table: Tensor

    def __init__(self, own: Any, length: int) -> None:
        super().__init__()
        self.padding_idx: int = own.padding_idx
        if isinstance(own, SinusoidalPositionalEmbedding):
            rows = self.padding_idx + 1 + length
            table = own.get_embedding(rows, own.embedding_dim, self.padding_idx)
        else:
            table = own.weight.detach()
        self.register_buffer("table", table)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) tokens to (B, T, C), counted without padding."""
        real = tokens.ne(self.padding_idx).long()
        return F.embedding(real.cumsum(1) * real + self.padding_idx, self.table)

    def at(self, position: Tensor) -> Tensor:
        """(1,) to (1, C), counted from 0."""
        return F.embedding(position + self.padding_idx + 1, self.table)


class _Attention(StepByStep):
    """Attention's four maps, taken from a model's."""

    def __init__(self, own: Any) -> None:
        super().__init__(causal=True)
        if type(own) not in (SourceAttention, SelfAttention):
            raise ExportError(f"it attends by {type(own).__name__}; expected the attention of this plugin's models")
        self.heads: int = own.heads if isinstance(own, SelfAttention) else own.num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = own.q_proj, own.k_proj, own.v_proj, own.out_proj

    def split(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, H, T, R)."""
        return x.reshape(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """Queries (B, T, C), keys (B, H, R, S), values (B, H, S, R): (B, T, C)."""
        q = self.split(self.q_proj(query))
        weights = masked_softmax(q @ keys / q.shape[-1] ** 0.5, seen)
        return self.out_proj((weights @ values).transpose(1, 2).reshape(query.shape))


class SourceKeys(_Attention):
    """The keys and values that a decoder's layer attends to, computed once for a source."""

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(S, B, C) to keys (B, H, R, S) and values (B, H, S, R)."""
        x = source.transpose(0, 1)
        return self.split(self.k_proj(x)).transpose(2, 3), self.split(self.v_proj(x))


class SourceAttentionStep(_Attention):
    """A step's attention to the source, whose keys and values it is given."""

    def hold(self, incremental_state: IncrementalState, beam: int, keys: Tensor, values: Tensor) -> None:
        """Keep what the next call of ``forward`` attends to, and the number of hypotheses of a sentence."""
        self.set_incremental_state(incremental_state, (beam, keys, values))

    def forward(
        self, query: Tensor, key_padding_mask: Tensor, incremental_state: IncrementalState, **_options: Any
    ) -> tuple[Tensor, None]:
        """(1, B * beam, C) to (1, B * beam, C); padding (B, S)."""
        beam, keys, values = self.get_incremental_state(incremental_state)
        # a sentence's hypotheses are queries to the same keys
        rows = query.reshape(key_padding_mask.shape[0], beam, query.shape[2])
        return self.attend(rows, keys, values, ~key_padding_mask[:, None, None, :]).reshape(query.shape), None


class SelfAttentionStep(_Attention):
    """A step's attention to its own past, whose keys and values grow by one a step."""

    def __init__(self, own: SelfAttention) -> None:
        super().__init__(own)
        self.window = own.window_size

    def forward(self, query: Tensor, *, incremental_state: IncrementalState) -> Tensor:
        """(1, N, C) to (1, N, C)."""
        past = self.get_incremental_state(incremental_state)
        keys = torch.cat([past["keys"], self.k_proj(query)])
        values = torch.cat([past["values"], self.v_proj(query)])
        self.set_incremental_state(incremental_state, {"keys": keys, "values": values})
        seen = None
        if self.window is not None:
            seen = torch.arange(keys.shape[0], device=keys.device).flip(0) < self.window
        own_keys = self.split(keys.transpose(0, 1)).transpose(2, 3)
        return self.attend(query.transpose(0, 1), own_keys, self.split(values.transpose(0, 1)), seen).transpose(0, 1)


def _check(stack: Any, kind: type, layer: type) -> None:
    for part, expected in [(stack, kind), *((own, layer) for own in stack.layers)]:
        if type(part) is not expected:
            raise ExportError(f"a part of it is a {type(part).__name__}; expected {expected.__name__}, a model of ours")


def _positions(stack: Any) -> Positions | None:
    own = stack.embed_positions
    return None if own is None else Positions(own, int(stack.max_positions()))


def _states(layer: Any) -> list[State]:
    """The tensors that a layer's modules keep from step to step."""
    states = []
    for module in layer.modules():
        if isinstance(module, (LightweightConv, DynamicConv)):
            states.append(State(module, "inputs", module.kernel_size - 1, module.channels))
        elif isinstance(module, StandardConv):
            states.append(State(module, "inputs", module.kernel_size - 1, module.weight.shape[1]))
        elif isinstance(module, AverageAttention):
            states.append(State(module, "total", 1, module.fc1.in_features))
            states.append(State(module, "count", 1, 1))
        elif isinstance(module, SelfAttentionStep):
            states += [State(module, part, None, module.k_proj.out_features) for part in ("keys", "values")]
        elif hasattr(module, "reorder_incremental_state") and not isinstance(module, SourceAttentionStep):
            raise ExportError(
                f"a {type(module).__name__} keeps a state of its own; expected a convolution or attention"
            )
    return states
