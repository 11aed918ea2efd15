"""``pla_lightconv_lm``: the decoder as a language model (section 5.3), with adaptive input and softmax."""

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
    """Complete and check the options. Return them in the form that fairseq's decoder expects.

    Raises:
        ValueError: an adaptive input that cannot share weights with the adaptive softmax or the output layer, or an
            option that ``resolve`` rejects.
    """
    args = to_namespace(cfg, LightConvLanguageModelConfig)
    fill(args, {**BASE_DECODER, "decoder_embed_dim": 512, "decoder_ffn_embed_dim": 2048, "tokens_per_sample": 1024})
    fill(args, {"max_target_positions": args.tokens_per_sample})
    resolve_common(args)
    resolve_side(args, "decoder")
    if args.tie_adaptive_weights:
        of_input = (args.adaptive_input_cutoff, args.adaptive_input_factor, args.decoder_input_dim)
        of_softmax = (args.adaptive_softmax_cutoff, args.adaptive_softmax_factor, args.decoder_output_dim)
        if not args.adaptive_input or of_input != of_softmax:
            raise ValueError(
                "--tie-adaptive-weights needs --adaptive-input with the cut-offs, factor and width of the adaptive "
                f"softmax; got {of_input if args.adaptive_input else 'no adaptive input'} and {of_softmax}. Make them "
                "equal, or give --no-tie-adaptive-weights"
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

    On a CPU, which needs no wait, fairseq's implementation looks up each word in its own band only. A graph of
    torch.compile cannot count words, so there ``masked`` runs too.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the embeddings (B, T, C) of words (B, T)."""
        if input.device.type == "cpu" and not torch.compiler.is_compiling():
            return super().forward(input)
        return self.masked(input)

    def masked(self, input: Tensor) -> Tensor:
        """Look up every word in every band, and mask the other bands: at most a third more work with factor 4."""
        result: Tensor | float = 0.0
        for start, end, band in zip([0, *self.cutoff], self.cutoff, self.embeddings, strict=False):
            in_band = (input >= start) & (input < end)
            # Words of other bands look up some word of this band, to be masked. The modulus spreads these look-ups over
            # the band, which keeps the sums of the gradient short.
            embedded = band((input - start) % (end - start))
            result = result + embedded.masked_fill(~in_band.unsqueeze(-1), 0)
        assert isinstance(result, Tensor)
        return result


def build_embedding(cfg: Any, dictionary: Any) -> nn.Module:
    """Return the token embeddings: adaptive ones, narrower for rarer words, with ``adaptive_input``."""
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
