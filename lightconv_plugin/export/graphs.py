"""The two graphs of decoding: the encoder, and one step of the decoder, whose state is an input and an output.

They call the model's own modules. Only position embeddings are read from their table instead, since fairseq's modules
depend on the values of a tensor, which a graph cannot.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv_plugin.compat import CheckpointError
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import AverageAttention, DynamicConv, LightweightConv, SelfAttention, StandardConv
from lightconv_plugin.modules.window import IncrementalState, StepByStep


@dataclass(frozen=True)
class State:
    """A tensor (length, N, width) that a decoder keeps from step to step for its N hypotheses."""

    module: StepByStep
    part: str  # key in the module's entry of the incremental state
    length: int | None  # constant; None if each step adds 1, starting from 0
    width: int


class Encoder(nn.Module):
    """Graph of the encoder: computes everything that the decoding steps read of the source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder: Any = copy.deepcopy(model.encoder)
        if self.encoder.embed_positions is not None:
            self.encoder.embed_positions = Positions(self.encoder.embed_positions)
        self.source: Any = nn.ModuleList(layer.encoder_attn for layer in model.decoder.layers)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Return the padding mask (B, S), then each decoder layer's keys and values (B, S, C), from tokens (B, S)."""
        out = self.encoder(tokens)
        (source,), (padding,) = out["encoder_out"], out["encoder_padding_mask"]
        entries = [attention.read(source, padding, None, {}) for attention in self.source]
        return [padding, *(entry[name] for entry in entries for name in ("keys", "values"))]


class Positions(nn.Module):
    """Position embeddings, read from a table of fixed length."""

    table: Tensor

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.padding_idx: int = embeddings.padding_idx
        self.register_buffer(
            "table", embeddings.weights if hasattr(embeddings, "weights") else embeddings.weight.detach()
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (B, T, C) of the positions of tokens (B, T). Padding is not counted."""
        real = tokens.ne(self.padding_idx).long()
        return F.embedding(real.cumsum(1) * real + self.padding_idx, self.table)


class Step(nn.Module):
    """Graph of a decoding step: computes the log-probabilities of the next token, and the state of the next step."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder: Any = copy.deepcopy(model.decoder)
        self.states = [state for module in self.decoder.stateful for state in _states(module)]

    def forward(self, tokens: Tensor, parents: Tensor, position: Tensor, *tensors: Tensor) -> list[Tensor]:
        """Take one step.

        Args:
            tokens: (B, beam), the newest token of each hypothesis; the hypotheses of a sentence follow each other.
            parents: (B, beam), for each hypothesis the index of the one that it continues, among the N hypotheses of
                the previous step.
            position: (1,), number of tokens before the newest one.
            tensors: the outputs of ``Encoder``, except for a language model; then the ``states``, (length, N, width).
                In the first step N is B, and the states are zero.

        Returns:
            Log-probabilities (B, beam, V), then the states (length, B * beam, width).
        """
        decoder, kept = self.decoder, IncrementalState()
        if count := len(tensors) - len(self.states):
            padding, *pairs = tensors[:count]
            sentence = torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(1).expand_as(tokens).reshape(-1)
            for layer, keys, values in zip(decoder.layers, pairs[::2], pairs[1::2], strict=True):
                source = {"keys": keys, "values": values, "padding": padding, "sentence": sentence}
                layer.encoder_attn.set_incremental_state(kept, source)
        for state, tensor in zip(self.states, tensors[count:], strict=True):
            entry = state.module.get_incremental_state(kept) or {}
            state.module.set_incremental_state(kept, entry | {state.part: tensor.index_select(1, parents.reshape(-1))})
        output = decoder.step(tokens.reshape(-1, 1), position, kept)
        log_probs = decoder.get_normalized_probs((output,), log_probs=True)
        states = [state.module.get_incremental_state(kept)[state.part] for state in self.states]
        return [log_probs.reshape(*tokens.shape, log_probs.shape[-1]), *states]


def _states(module: Any) -> list[State]:
    match module:
        case SourceAttention():
            return []
        case LightweightConv() | DynamicConv():
            return [State(module, "inputs", module.kernel_size - 1, module.channels)]
        case StandardConv():
            return [State(module, "inputs", module.kernel_size - 1, module.weight.shape[1])]
        case AverageAttention():
            return [State(module, "total", 1, module.fc1.in_features), State(module, "count", 1, 1)]
        case SelfAttention(window_size=None):  # keys and values
            return [State(module, "inputs", None, 2 * module.k_proj.out_features)]
    raise CheckpointError(
        f"a {type(module).__name__} of its decoder keeps a state that is not exported; expected convolutions, averaged "
        "attention, or self-attention to all positions (self-attention within a window cannot be exported)"
    )
