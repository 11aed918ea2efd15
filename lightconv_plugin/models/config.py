"""The options of the models, as flags or YAML. ``resolve`` completes and checks them.

An option that an architecture may set is None by default, which means that the user has not set it. Options with the
same meaning as in fairseq's own lightconv have the same names.
"""

from dataclasses import dataclass, field
from typing import Any, List, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.utils import get_available_activation_fns
from omegaconf import II

from lightconv_plugin.modules.conv import DROPCONNECT_PER
from lightconv_plugin.ops import CHOICES, NORMALIZATIONS

# The mixers of positions, with a description of each for --help.
CONV_TYPES = {
    "lightweight": "LightConv (with --*-conv-heads = channels and --weight-softmax 0: a depthwise convolution)",
    "dynamic": "DynamicConv",
    "standard": "a convolution over all channels, without projections (Table 3, CNN)",
    "attention": "self-attention over the whole sequence",
    "local_attention": "self-attention within a window as wide as the kernel (Table 3)",
    "average": "averaged attention (Zhang et al., 2018; Table 3, AAN)",
}
ConvType = ChoiceEnum(list(CONV_TYPES))
_CONV_TYPE_HELP = "; ".join(f"{name}: {text}" for name, text in CONV_TYPES.items())


def _option(help: str, default: Any = None, alias: Optional[str] = None) -> Any:
    return field(default=default, metadata={"help": help, "argparse_alias": alias})


@dataclass
class DecoderOptions(FairseqDataclass):
    """Options that translation and language models share. None: the architecture's value."""

    dropout: Optional[float] = _option("dropout probability")
    attention_dropout: Optional[float] = _option("dropout probability of attention weights")
    relu_dropout: Optional[float] = _option(
        "dropout probability after the activation of the feed-forward network", alias="--activation-dropout"
    )
    activation_fn: ChoiceEnum(get_available_activation_fns()) = _option(  # type: ignore[valid-type]
        "activation function of the feed-forward networks", "relu"
    )
    ffn_init: ChoiceEnum(["xavier", "pytorch"]) = _option(  # type: ignore[valid-type]
        "initial weights of the feed-forward networks: Xavier's, as when the paper appeared, or PyTorch's, which are "
        "smaller, as in fairseq's Transformer since 2020",
        "xavier",
    )
    input_dropout: Optional[float] = _option("dropout probability of the input of the convolution modules")
    weight_dropout: Optional[float] = _option(
        "DropConnect: probability with which a normalised kernel weight is dropped (default: --attention-dropout)"
    )
    weight_dropout_per: ChoiceEnum(list(DROPCONNECT_PER)) = _option(  # type: ignore[valid-type]
        "DropConnect of LightConv: one mask per position, as in the code behind the published results, or one mask per "
        "kernel for all positions, as in the paper's text (DynamicConv has one kernel per position)",
        "position",
    )
    weight_softmax: bool = _option("normalise the kernels by a softmax over their width", True)
    weight_normalization: Optional[ChoiceEnum(list(NORMALIZATIONS))] = _option(  # type: ignore[valid-type]
        "normalisation of the kernels, if not by a softmax (Table 6 of the paper)"
    )
    conv_backend: ChoiceEnum(list(CHOICES)) = _option(  # type: ignore[valid-type]
        "implementation of the convolutions; a backend that is named is never replaced by another", "auto"
    )
    decoder_conv_type: Optional[ConvType] = _option(  # type: ignore[valid-type]
        "mixer of the decoder's blocks. " + _CONV_TYPE_HELP
    )
    decoder_embed_dim: Optional[int] = _option("width of the decoder's blocks")
    decoder_input_dim: Optional[int] = _option("width of a language model's embeddings (default: --decoder-embed-dim)")
    decoder_output_dim: Optional[int] = _option("width of the last projection's input (default: --decoder-embed-dim)")
    decoder_conv_dim: Optional[int] = _option("channels of the decoder's convolutions (default: --decoder-embed-dim)")
    decoder_conv_heads: Optional[int] = _option(
        "heads of the decoder's convolutions, each with its own kernel (default: --decoder-attention-heads)"
    )
    decoder_query_dim: Optional[int] = _option(
        "predict the decoder's dynamic kernels from a projection of this width (default: from the convolved input)"
    )
    decoder_query_heads: Optional[int] = _option(
        "split heads and query into this many groups; the heads of a group see its part of the query (default: 1)"
    )
    decoder_ffn_embed_dim: Optional[int] = _option("width of the decoder's feed-forward networks")
    decoder_layers: Optional[int] = _option("blocks of the decoder")
    decoder_attention_heads: Optional[int] = _option(
        "heads of the decoder's attention; the default for its convolutions"
    )
    decoder_kernel_size_list: Optional[List[int]] = _option(
        "kernel width of each decoder block, for example '[3,7,15,31,31,31]', or one width for all"
    )
    decoder_glu: Optional[bool] = _option("gate the input of the decoder's convolutions (GLU)")
    decoder_normalize_before: Optional[bool] = _option("layer norm before each sublayer of the decoder, not after")
    no_decoder_final_norm: Optional[bool] = _option(
        "no layer norm after the last block, with --decoder-normalize-before"
    )
    decoder_learned_pos: bool = _option("learned positions in the decoder instead of sinusoids", False)
    no_token_positional_embeddings: bool = _option("use no position embeddings", False)
    no_scale_embedding: bool = _option("do not multiply the embeddings by the square root of their width", False)
    layernorm_embedding: bool = _option("layer norm after the embeddings and positions", False)
    share_decoder_input_output_embed: Optional[bool] = _option("one matrix for the decoder's embeddings and output")
    adaptive_softmax_cutoff: Optional[List[int]] = _option(
        "cut-offs of the adaptive softmax, for --criterion adaptive_loss, for example '60000,160000'; '[]': none"
    )
    adaptive_softmax_dropout: float = _option("dropout of the adaptive softmax's tail projections", 0.0)
    adaptive_softmax_factor: float = _option(
        "each band of the adaptive softmax is this many times narrower than the previous one", 4.0
    )
    decoder_layerdrop: float = _option("probability with which training leaves out a block of the decoder", 0.0)
    checkpoint_activations: bool = _option(
        "keep only each block's input in memory, and recompute the block in the backward pass", False
    )


@dataclass
class LightConvConfig(DecoderOptions):
    """Options of ``pla_lightconv``, the encoder-decoder. None: the architecture's value."""

    encoder_conv_type: Optional[ConvType] = _option(  # type: ignore[valid-type]
        "mixer of the encoder's blocks. " + _CONV_TYPE_HELP
    )
    encoder_embed_path: Optional[str] = _option("file with pre-trained source embeddings")
    encoder_embed_dim: Optional[int] = _option("width of the encoder's blocks and embeddings")
    encoder_conv_dim: Optional[int] = _option("channels of the encoder's convolutions (default: --encoder-embed-dim)")
    encoder_conv_heads: Optional[int] = _option(
        "heads of the encoder's convolutions, each with its own kernel (default: --encoder-attention-heads)"
    )
    encoder_query_dim: Optional[int] = _option(
        "predict the encoder's dynamic kernels from a projection of this width (default: from the convolved input)"
    )
    encoder_query_heads: Optional[int] = _option(
        "split heads and query into this many groups; the heads of a group see its part of the query (default: 1)"
    )
    encoder_ffn_embed_dim: Optional[int] = _option("width of the encoder's feed-forward networks")
    encoder_layers: Optional[int] = _option("blocks of the encoder")
    encoder_attention_heads: Optional[int] = _option(
        "heads of the encoder's attention; the default for its convolutions"
    )
    encoder_kernel_size_list: Optional[List[int]] = _option(
        "kernel width of each encoder block, odd, for example '[3,7,15,31,31,31,31]', or one width for all"
    )
    encoder_glu: Optional[bool] = _option("gate the input of the encoder's convolutions (GLU)")
    encoder_normalize_before: Optional[bool] = _option("layer norm before each sublayer of the encoder, not after")
    encoder_learned_pos: bool = _option("learned positions in the encoder instead of sinusoids", False)
    decoder_embed_path: Optional[str] = _option("file with pre-trained target embeddings")
    share_all_embeddings: Optional[bool] = _option(
        "one matrix for the encoder's, the decoder's and the output embeddings; needs a joined dictionary"
    )
    encoder_layerdrop: float = _option("probability with which training leaves out a block of the encoder", 0.0)
    no_cross_attention: bool = _option("a decoder that does not attend to the source", False)
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class LightConvLanguageModelConfig(DecoderOptions):
    """Options of ``pla_lightconv_lm``, the language model. None: the architecture's value."""

    adaptive_input: Optional[bool] = _option("adaptive input: embeddings that are narrower for rarer words")
    adaptive_input_cutoff: Optional[List[int]] = _option("cut-offs of the adaptive input, for example '60000,160000'")
    adaptive_input_factor: float = _option(
        "each band of the adaptive input is this many times narrower than the previous one", 4.0
    )
    tie_adaptive_weights: Optional[bool] = _option("one set of weights for the adaptive input and softmax")
    tie_adaptive_proj: Optional[bool] = _option("one set of projections for the adaptive input and softmax")
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")
