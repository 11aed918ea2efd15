"""``pla_lightconv``: the encoder-decoder of section 5.1, with LightConv or DynamicConv in encoder and decoder.

Everything outside of the blocks (embeddings, positions, output layer) is fairseq's Transformer, as in the paper, which
only replaced self-attention.
"""

from typing import Any

import torch
from fairseq.models import register_model
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from lightconv_plugin import ops
from lightconv_plugin.models import decoder_step
from lightconv_plugin.models.config import LightConvConfig
from lightconv_plugin.models.hub import PluginModel
from lightconv_plugin.models.layers import DecoderBlock, EncoderBlock
from lightconv_plugin.models.resolve import check_bands, resolve
from lightconv_plugin.models.source_attention import SourceAttention
from lightconv_plugin.modules import AverageAttention, ConvModule, Dropout, IncrementalState
from lightconv_plugin.modules.linear import apply_linear, is_plain, modules_of, with_packed_weights
from lightconv_plugin.modules.window import OwnEntry


class LightConvEncoder(TransformerEncoderBase):
    """Encoder of ``cfg.encoder.layers`` blocks; the i-th has the i-th kernel width."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module) -> None:
        self._kernel_sizes = iter(cfg.encoder.kernel_size_list)  # the parent builds the blocks in order
        super().__init__(cfg, dictionary, embed_tokens)
        self.dropout_module = Dropout(cfg.dropout, self)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        block = EncoderBlock(cfg, next(self._kernel_sizes))
        return checkpoint_wrapper(block) if cfg.checkpoint_activations else block

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Any]]:
        """Encode the source, always with a padding mask.

        fairseq's method asks the device in every block if there is padding, and so waits for it.

        Args:
            src_tokens: (B, S).
            src_lengths: ignored, since the tokens show the padding.
            return_all_hiddens: also return the output of each block.
            token_embeddings: (B, S, C), to be used in place of the tokens' embeddings.

        Returns:
            fairseq's dictionary, with encoder_out (S, B, C) and its padding mask (B, S).
        """
        padding = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x.masked_fill(padding.unsqueeze(-1), 0).transpose(0, 1)
        states = [x] if return_all_hiddens else []
        for layer in self.layers:
            x = layer(x, encoder_padding_mask=padding)
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(dim=1, dtype=torch.int32).unsqueeze(1)],
        }


class LightConvDecoder(OwnEntry, TransformerDecoderBase):
    """Decoder of ``cfg.decoder.layers`` blocks; the i-th has the i-th kernel width.

    Its own entry in an incremental state is that of ``decoder_step``.
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, no_encoder_attn: bool = False) -> None:
        if cfg.adaptive_softmax_cutoff:
            width, factor = cfg.decoder.output_dim, cfg.adaptive_softmax_factor
            check_bands("softmax", cfg.adaptive_softmax_cutoff, len(dictionary), width=width, factor=factor)
        self._kernel_sizes = iter(cfg.decoder.kernel_size_list)
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.dropout_module = Dropout(cfg.dropout, self)
        # if this is true, fairseq adds an output layer to the weights that it loads
        self.share_input_output_embed = cfg.share_decoder_input_output_embed and self.adaptive_softmax is None
        # if this is true, fairseq passes the padding mask, which our blocks ignore, without asking if there is padding
        self.cross_self_attention = True

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        block = DecoderBlock(cfg, next(self._kernel_sizes), no_encoder_attn=no_encoder_attn)
        return checkpoint_wrapper(block) if cfg.checkpoint_activations else block

    def output_layer(self, features: Tensor) -> Tensor:
        """Return the logits (B, T, V) of features (B, T, C), or, for an adaptive softmax, the features themselves."""
        if self.adaptive_softmax is not None:
            return features
        return apply_linear(self.output_projection, features)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor | None:
        """Return no mask, since the mixers are causal. This saves a (T, T) matrix in every forward pass."""
        return None

    # ---- for searches, which decode step by step ----

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: IncrementalState | None = None,
        *arguments: Any,
        **options: Any,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Compute the features as fairseq does, in incremental decoding by one operator for all blocks if possible.

        Args:
            prev_output_tokens: (B, T); in incremental decoding the last one is new.
            encoder_out, arguments, options: as fairseq's.
            incremental_state: the state after the previous step; None for whole sequences.

        Returns:
            The features (B, T, C), or (B, 1, C) in incremental decoding, and fairseq's dictionary.
        """
        rows = prev_output_tokens.shape[0]
        if incremental_state is not None and decoder_step.may_step(self, incremental_state, rows):
            positions: Tensor | None = None
            if self.embed_positions is not None:
                positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)[:, -1:]
            x = self.dropout_module(self.embed(prev_output_tokens[:, -1:], positions)).transpose(0, 1)
            out = decoder_step.step(self, x, incremental_state)
            if out is not None:
                return self._features(out), {"attn": [None], "inner_states": [x, out]}
        features, extra = super().extract_features_scriptable(
            prev_output_tokens, encoder_out, incremental_state, *arguments, **options
        )
        if incremental_state is not None and self.get_incremental_state(incremental_state) is None:
            decoder_step.begin(self, extra["inner_states"][0], incremental_state)
        return features, extra

    def _features(self, x: Tensor) -> Tensor:
        """Return the features (N, T, C) from the output of the last block (T, N, C)."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)

    @property
    def stateful(self) -> list[Any]:
        """The decoder's modules that have an entry in the incremental state."""
        parts = dict.fromkeys(modules_of(self)[1:])
        return [part for part in parts if hasattr(type(part), "reorder_incremental_state")]

    def reserve_positions(self, count: int) -> None:
        """Compute sinusoidal embeddings of ``count`` positions. The number of learned embeddings does not change."""
        if isinstance(self.embed_positions, SinusoidalPositionalEmbedding):
            tokens = self.embed_positions.weights.new_zeros(1, count, dtype=torch.long)
            self.embed_positions(tokens, incremental_state={})

    def position_table(self) -> Tensor | None:
        """Return the embeddings (positions, C) of a target's positions, the first one first; None if there are none."""
        if self.embed_positions is None:
            return None
        table = getattr(self.embed_positions, "weights", None)  # sinusoids; learned embeddings are in ``weight``
        table = self.embed_positions.weight if table is None else table
        return table[self.padding_idx + 1 :]

    def read_source(self, encoder_out: dict[str, list[Tensor]], incremental_state: IncrementalState, rows: int) -> None:
        """Store the source's keys and values in the state, for ``rows`` hypotheses, equally many for each sentence."""
        (source,), (padding,) = encoder_out["encoder_out"], encoder_out["encoder_padding_mask"]
        numbers = torch.arange(len(padding), device=padding.device).unsqueeze(1).repeat(1, rows // len(padding))
        for module in self.stateful:
            if isinstance(module, SourceAttention):
                module.read(source, padding, numbers.flatten(), incremental_state)

    def embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Embed a step's words (N, T) as fairseq's decoders do, with the embeddings (T, C) of their positions."""
        x: Tensor = self.embed_scale * self.embed_tokens(tokens)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        return x if self.layernorm_embedding is None else self.layernorm_embedding(x)

    def step(self, newest: Tensor, position: Tensor, incremental_state: IncrementalState) -> Tensor:
        """Decode one step. All numbers that change between steps are tensors, so one captured graph serves all steps.

        A step may have several tokens, such as a prompt, or a draft to be verified. Their products with weights are
        computed together.

        Args:
            newest: (N,), each hypothesis' last token, or (N, T), its last T tokens.
            position: (1,), position of the first of those tokens, counted from 0.
            incremental_state: the state after ``read_source`` or the previous step; empty for a language model's first
                step. The step changes it: copy it first (``copy.deepcopy``) to return to it.

        Returns:
            The logits (N, V), or (N, T, V), as ``forward`` computes them.
        """
        tokens = newest.unsqueeze(1) if newest.ndim == 1 else newest
        positions: Tensor | None = None
        if (table := self.position_table()) is not None:
            if newest.ndim == 2:
                position = position + torch.arange(newest.shape[1], device=position.device)
            positions = table.index_select(0, position)
        decoder_step.give_back(self, incremental_state)  # after steps of ``forward``
        x = self.dropout_module(self.embed(tokens, positions)).transpose(0, 1)  # (N, T, C) to (T, N, C)
        for layer in self.layers:
            x = layer(x, incremental_state=incremental_state)[0]
        logits = self.output_layer(self._features(x))
        return logits.squeeze(1) if newest.ndim == 1 else logits

    def search(self, encoder_out: dict[str, list[Tensor]], beams: ops.Beams, bos: int, **rules: Any) -> bool:
        """Run a whole beam search in one operator, as ``ops.beam_search`` describes it.

        Returns False, and changes nothing, if it must be run step by step.
        """
        return type(self) is LightConvDecoder and decoder_step.search(self, encoder_out, beams, bos, rules)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the beams in the decoder's own entry of the state; its modules have entries of their own."""
        decoder_step.reorder(self, incremental_state, new_order)

    def reorder_incremental_state_scripting(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the beams: hypothesis b gets the history of hypothesis new_order[b]."""
        for module in (self, *self.stateful):  # the decoder first: it may give the modules' states back
            module.reorder_incremental_state(incremental_state, new_order)


FIXED_SIZE_STATE = (ConvModule, AverageAttention)
"""Mixers whose state has the same shape after each step of decoding, as a captured CUDA graph needs it."""


@register_model("pla_lightconv", dataclass=LightConvConfig)
class LightConvModel(PluginModel, TransformerModelBase):
    """LightConv and DynamicConv encoder-decoder (Wu et al., ICLR 2019)."""

    config_class = LightConvConfig

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LightConvModel":
        """Build from flags (a namespace), YAML or a checkpoint's config.

        Raises:
            ValueError: options that do not fit each other, or the task's dictionaries or padding.
        """
        complete = resolve(cfg)
        options = getattr(task, "cfg", None) or getattr(task, "args", None)
        if getattr(options, "left_pad_target", False) in (True, "True"):
            raise ValueError(
                "--left-pad-target True puts padding before targets, where these decoders do not mask it; leave it out"
            )
        entries = len(task.source_dictionary), len(task.target_dictionary)
        if complete.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            raise ValueError(
                "--share-all-embeddings, given or set by the architecture, needs a joined dictionary; this data has "
                f"two, of {entries[0]:,} and {entries[1]:,} entries. Give --no-share-all-embeddings, or prepare the "
                "data with --joined-dictionary"
            )
        return super().build_model(complete, task)

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: nn.Module) -> LightConvEncoder:
        return LightConvEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Module) -> LightConvDecoder:
        return LightConvDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def for_search(self) -> tuple[Any, Any]:
        """Return encoder and decoder for a search; on a CPU, copies whose linear layers have packed weights."""
        decoder = with_packed_weights(self.decoder)
        for block in {*decoder.layers} - {*self.decoder.layers}:  # copies
            block.need_attn = False  # hypotheses of a search have no attention
        return with_packed_weights(self.encoder), decoder

    def graph_refusal(self) -> str | None:
        """Return the part of the model that a captured graph of a decoding step does not support, in words, or None."""
        encoder, decoder = self.encoder, self.decoder
        if type(encoder) is not LightConvEncoder or type(decoder) is not LightConvDecoder:
            return f"{type(encoder).__name__} and {type(decoder).__name__}"
        for layer in decoder.layers:
            if type(layer) is not DecoderBlock or layer.encoder_attn is None:
                return "a block of another class, or without attention to the source"
            if type(layer.mixer) not in FIXED_SIZE_STATE:
                return f"{type(layer.mixer).__name__}, whose state may grow from step to step"
            conv = getattr(layer.mixer, "conv", None)
            if conv is not None and ops.choose_backend("conv_step", conv.backend, *conv.parameters()) != "native":
                return "a convolution without the native library"
        for module in modules_of(self):
            if not is_plain(module, type(module)):
                return "a module with hooks, a replaced forward, or parameters that are not plain tensors"
            if isinstance(module, Dropout) and module.probability > 0:
                return "dropout"
        return "autocast" if torch.is_autocast_enabled(next(self.parameters()).device.type) else None
