"""Attention of a decoder to the source: fairseq's, with steps that do not copy the source's keys and values."""

from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from lightconv_plugin import ops
from lightconv_plugin.modules import Dropout, IncrementalState
from lightconv_plugin.modules.linear import apply_linear
from lightconv_plugin.modules.window import OwnEntry


class SourceAttention(OwnEntry, MultiheadAttention):
    """fairseq's source-target attention: the same parameters, the same results.

    In incremental decoding the keys and values of a sentence are computed once, for all of its hypotheses, and are not
    copied. Beam search only reorders each hypothesis' sentence index. The source has one row per hypothesis, or one
    row per sentence if all sentences have the same number of hypotheses, in consecutive rows.
    """

    def __init__(self, embed_dim: int, heads: int, *, source_dim: int, dropout: float = 0.0) -> None:
        super().__init__(
            embed_dim, heads, kdim=source_dim, vdim=source_dim, dropout=dropout, encoder_decoder_attention=True
        )
        self.dropout_module = Dropout(dropout, self)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the source, with the arguments of fairseq's class.

        Args:
            query: (T, B, C); with a state, of the newest positions.
            key: the source (S, B, C_source). With a state it may be (S, B / beam, C_source), and only the first step
                needs it.
            value: the source again.
            key_padding_mask: (B, S), or (B / beam, S) like the source.
            incremental_state: a decoder's state, see ``modules.window``.
            need_weights: also return the weights, their mean over heads (B, T, S).
            need_head_weights: return the weights of each head, (H, B, T, S).
            static_kv: ignored. The source is never expected to change from step to step.
        """
        need_weights = need_weights or need_head_weights
        if incremental_state is None:
            out, weights = self._attend(query, key, value, key_padding_mask, need_weights)
        else:
            out, weights = self._step(query, key, key_padding_mask, incremental_state, need_weights)
        if weights is not None and not need_head_weights:
            weights = weights.mean(dim=0)
        return apply_linear(self.out_proj, out), weights

    def _attend(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, padding: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from all positions: (T, B, C), and the weights (H, B, T, S) if needed."""

        def split(x: Tensor) -> Tensor:  # (T, B, C) -> (B, H, T, R)
            return x.unflatten(2, (self.num_heads, -1)).permute(1, 2, 0, 3)

        pairs = ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        q, k, v = (split(apply_linear(layer, x)) for layer, x in pairs)
        seen = None if padding is None else ~padding.bool()[:, None, None, :]
        out, weights = ops.attention(q, k, v, seen, self.dropout_module.probability, need_weights=need_weights)
        if weights is not None:
            weights = weights.transpose(0, 1)
        return out.permute(2, 0, 1, 3).reshape(query.shape), weights

    def _step(
        self,
        query: Tensor,
        key: Any,
        padding: Tensor | None,
        incremental_state: IncrementalState,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from the newest positions: (T, B, C), and the weights (H, B, T, S) if needed."""
        source = self.get_incremental_state(incremental_state)
        positions, rows, channels = query.shape
        if source is None:
            sentence = torch.arange(key.shape[1], device=key.device)
            sentence = sentence.repeat_interleave(rows // max(len(sentence), 1))
            source = self.read(key, padding, sentence, incremental_state)
        sentence = source["sentence"]
        if positions != 1:  # a row for each position of each hypothesis
            sentence = sentence.repeat(positions)
        queries = apply_linear(self.q_proj, query).reshape(1, positions * rows, channels)
        arguments = (queries, source["keys"], source["values"], source["padding"], sentence, self.num_heads)
        p = self.dropout_module.probability
        if not need_weights and p == 0.0:
            return ops.attend(*arguments).view(query.shape), None
        out, weights = ops.attend_with_weights(*arguments, p)
        by_position = weights.unflatten(0, (positions, rows)).permute(2, 1, 0, 3)
        return out.view(query.shape), by_position if need_weights else None

    def read(
        self, source: Tensor, padding: Tensor | None, sentence: Tensor, incremental_state: IncrementalState
    ) -> dict[str, Tensor | None]:
        """Store the keys and values of the source (S, sentences, C), and each row's sentence (N,), in the state."""
        keys, values = self.keys_and_values(source)
        padding = None if padding is None else padding.bool().contiguous()
        entry = {"keys": keys, "values": values, "padding": padding, "sentence": sentence}
        self.set_incremental_state(incremental_state, entry)
        return entry

    def keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and the values (sentences, S, C) of the source (S, sentences, C).

        The linear layers get the source in the layout of training (positions first), so that hooks see one layout.
        """
        keys, values = (apply_linear(layer, source) for layer in (self.k_proj, self.v_proj))
        return keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> IncrementalState:
        """Reorder the beams: hypothesis b gets the sentence of hypothesis new_order[b]."""
        source = self.get_incremental_state(incremental_state)
        if source is not None:
            reordered = {**source, "sentence": source["sentence"].index_select(0, new_order)}
            self.set_incremental_state(incremental_state, reordered)
        return incremental_state
