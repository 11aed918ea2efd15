"""``pla_lightconv_lm``: the decoder alone as a language model (section 5.3), with adaptive input and softmax."""

from typing import Any

import torch
from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import Embedding, TransformerConfig
from fairseq.modules import AdaptiveInput
from torch import Tensor, nn

from lightconv_plugin.models.config import LightConvLanguageModelConfig
from lightconv_plugin.models.encoder_decoder import LightConvDecoder
from lightconv_plugin.models.hub import PluginModel
from lightconv_plugin.models.resolve import BASE_DECODER, check_bands, fill, resolve_common, resolve_side, to_namespace


def resolve_language_model(cfg: Any) -> TransformerConfig:
    """Complete and check the options; returns the form that fairseq's decoder takes.

    Raises:
        ValueError: an adaptive input and softmax, or output layer, that cannot share weights; and see ``resolve``.
    """
    args = to_namespace(cfg, LightConvLanguageModelConfig)
    fill(args, {**BASE_DECODER, "decoder_embed_dim": 512, "decoder_ffn_embed_dim": 2048, "tokens_per_sample": 1024})
    fill(args, {"max_target_positions": args.tokens_per_sample})
    resolve_common(args)
    resolve_side(args, "decoder")
    if args.tie_adaptive_weights:
        own = (args.adaptive_input_cutoff, args.adaptive_input_factor, args.decoder_input_dim)
        softmax = (args.adaptive_softmax_cutoff, args.adaptive_softmax_factor, args.decoder_output_dim)
        if not args.adaptive_input or own != softmax:
            raise ValueError(
                "--tie-adaptive-weights needs --adaptive-input with the cut-offs, factor and width of the adaptive "
                f"softmax; got {own if args.adaptive_input else 'no adaptive input'} and {softmax}. Make them equal, "
                "or give --no-tie-adaptive-weights"
            )
    if args.adaptive_input and args.share_decoder_input_output_embed and not args.adaptive_softmax_cutoff:
        raise ValueError(
            "--share-decoder-input-output-embed needs embeddings of one width, and --adaptive-input has several; give "
            "--no-adaptive-input, or --adaptive-softmax-cutoff with --tie-adaptive-weights"
        )
    return TransformerConfig.from_namespace(args)


@register_model("pla_lightconv_lm", dataclass=LightConvLanguageModelConfig)
class LightConvLanguageModel(PluginModel, FairseqLanguageModel):
    """LightConv and DynamicConv language model (Wu et al., ICLR 2019, Table 4)."""

    config_class = LightConvLanguageModelConfig

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LightConvLanguageModel":
        """Build from flags (a namespace), YAML or a checkpoint's config.

        Raises:
            ValueError: options that do not fit each other, or cut-offs beyond the dictionary.
        """
        complete = resolve_language_model(cfg)
        embed_tokens = build_embedding(complete, task.dictionary)
        return cls(LightConvDecoder(complete, task.output_dictionary, embed_tokens, no_encoder_attn=True))


class AdaptiveEmbedding(AdaptiveInput):
    """fairseq's adaptive input (Baevski and Auli, 2019), without waiting for a GPU to count the words of a band.

    On a CPU, where nothing is waited for, fairseq's own looks up each word in its own band alone; not in a graph that
    torch.compile makes, which cannot count them.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Words (B, T) to embeddings (B, T, C)."""
        if input.device.type == "cpu" and not torch.compiler.is_compiling():
            return super().forward(input)
        return self.masked(input)

    def masked(self, input: Tensor) -> Tensor:
        """Look up every word in every band, and mask what is not its own: at most a third more work for factor 4."""
        result: Tensor | float = 0.0
        for start, end, band in zip([0, *self.cutoff], self.cutoff, self.embeddings, strict=False):
            own = (input >= start) & (input < end)
            # any word of the band serves for the others, and different ones keep the gradient's sums short
            embedded = band((input - start) % (end - start))
            result = result + embedded.masked_fill(~own.unsqueeze(-1), 0)
        assert isinstance(result, Tensor)
        return result


def build_embedding(cfg: Any, dictionary: Any) -> nn.Module:
    """Token embeddings, of a width that falls with the words' frequency where asked for."""
    vocab_size = len(dictionary)
    if cfg.adaptive_input:
        width, factor = cfg.decoder.input_dim, cfg.adaptive_input_factor
        check_bands("input", cfg.adaptive_input_cutoff or [], vocab_size, width=width, factor=factor)
        return AdaptiveEmbedding(
            vocab_size,
            dictionary.pad(),
            cfg.decoder.input_dim,
            cfg.adaptive_input_factor,
            cfg.decoder.embed_dim,
            cfg.adaptive_input_cutoff,
        )
    return Embedding(vocab_size, cfg.decoder.input_dim, dictionary.pad())
