"""``pla_lightconv_lm``: the decoder alone as a language model (section 5.1), with adaptive input and softmax."""

from argparse import ArgumentParser
from typing import Any

from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import Embedding, TransformerConfig
from fairseq.modules import AdaptiveInput
from torch import nn

from lightconv_plugin.models.config import LightConvLanguageModelConfig
from lightconv_plugin.models.encoder_decoder import LightConvDecoder
from lightconv_plugin.models.resolve import (
    BASE_DECODER,
    add_arguments,
    fill,
    resolve_common,
    resolve_side,
    to_namespace,
)


def resolve_language_model(cfg: Any) -> TransformerConfig:
    """Complete and check the options; returns the form that fairseq's decoder takes.

    Raises:
        ValueError: options that contradict each other, in a sentence.
    """
    args = to_namespace(cfg, LightConvLanguageModelConfig)
    fill(args, {**BASE_DECODER, "decoder_embed_dim": 512, "decoder_ffn_embed_dim": 2048})
    if not isinstance(args.tokens_per_sample, int):  # an interpolation that nobody resolved
        args.tokens_per_sample = 1024
    if not isinstance(args.max_target_positions, int):
        args.max_target_positions = args.tokens_per_sample
    resolve_common(args)
    resolve_side(args, "decoder")
    if args.adaptive_input and not args.adaptive_input_cutoff:
        raise ValueError("--adaptive-input needs --adaptive-input-cutoff, for example 60000,160000")
    if args.tie_adaptive_weights:
        own = (args.adaptive_input_cutoff, args.adaptive_input_factor, args.decoder_input_dim)
        softmax = (args.adaptive_softmax_cutoff, args.adaptive_softmax_factor, args.decoder_output_dim)
        if not args.adaptive_input or own != softmax:
            raise ValueError(
                "--tie-adaptive-weights needs --adaptive-input with the cut-offs, factor and width of the adaptive "
                f"softmax; got {own if args.adaptive_input else 'no adaptive input'} and {softmax}. Make them equal, "
                "or give --no-tie-adaptive-weights"
            )
    return TransformerConfig.from_namespace(args)


@register_model("pla_lightconv_lm", dataclass=LightConvLanguageModelConfig)
class LightConvLanguageModel(FairseqLanguageModel):
    """LightConv and DynamicConv language model (Wu et al., ICLR 2019, Table 4)."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        add_arguments(parser, LightConvLanguageModelConfig())

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LightConvLanguageModel":
        """Build from flags (a namespace), YAML or a checkpoint's config.

        Raises:
            ValueError: options that contradict each other, or cut-offs beyond the dictionary.
        """
        complete = resolve_language_model(cfg)
        embed_tokens = build_embedding(complete, task.dictionary)
        return cls(LightConvDecoder(complete, task.output_dictionary, embed_tokens, no_encoder_attn=True))


def build_embedding(cfg: Any, dictionary: Any) -> nn.Module:
    """Token embeddings, of a width that falls with the words' frequency with ``adaptive_input``."""
    types = len(dictionary)
    adaptive_input = ["adaptive_input_cutoff"] if cfg.adaptive_input else []
    for name in (*adaptive_input, "adaptive_softmax_cutoff"):
        cutoff = getattr(cfg, name, None)
        if cutoff and cutoff[-1] > types:
            raise ValueError(
                f"--{name.replace('_', '-')} {cutoff} goes beyond the dictionary's {types} types; give smaller cut-offs"
            )
    if cfg.adaptive_input:
        return AdaptiveInput(
            types,
            dictionary.pad(),
            cfg.decoder.input_dim,
            cfg.adaptive_input_factor,
            cfg.decoder.embed_dim,
            list(cfg.adaptive_input_cutoff),
            cfg.quant_noise.pq,
            cfg.quant_noise.pq_block_size,
        )
    return Embedding(types, cfg.decoder.input_dim, dictionary.pad())
