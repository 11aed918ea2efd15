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
    "lightweight": "LightConv; with --*-conv-heads = channels and --weight-softmax 0 a depthwise convolution",
    "dynamic": "DynamicConv",
    "standard": "a convolution over all channels, without projections (Table 3, CNN)",
    "attention": "self-attention over the whole sequence",
    "local_attention": "self-attention within a window as wide as the kernel (Table 3)",
    "average": "averaged attention (Zhang et al., 2018; Table 3, AAN)",
}
ConvType = ChoiceEnum(list(CONV_TYPES))
_CONV_TYPE_HELP = "the mixer of its blocks: " + "; ".join(f"{name}: {text}" for name, text in CONV_TYPES.items())


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
        "what the feed-forward networks start with: Xavier's weights, as when the paper appeared, or PyTorch's, which "
        "are smaller, as in fairseq's Transformer since 2020",
        "xavier",
    )
    input_dropout: Optional[float] = _option("dropout probability of what enters the convolution modules")
    weight_dropout: Optional[float] = _option(
        "DropConnect: probability with which a normalised kernel weight is dropped (default: --attention-dropout)"
    )
    weight_dropout_per: ChoiceEnum(list(DROPCONNECT_PER)) = _option(  # type: ignore[valid-type]
        "drop the weights of LightConv's kernels at each position anew, as the code behind the published results does, "
        "or once for all positions of a kernel, as the paper's text reads (DynamicConv has a kernel a position)",
        "position",
    )
    weight_softmax: bool = _option("normalise the kernels by a softmax over their width", True)
    weight_normalization: Optional[ChoiceEnum(list(NORMALIZATIONS))] = _option(  # type: ignore[valid-type]
        "normalise the kernels otherwise than by a softmax (Table 6 of the paper)"
    )
    conv_backend: ChoiceEnum(list(CHOICES)) = _option(  # type: ignore[valid-type]
        "the code that runs the convolutions; a named backend is never replaced by another", "auto"
    )
    decoder_conv_type: Optional[ConvType] = _option("the decoder: " + _CONV_TYPE_HELP)  # type: ignore[valid-type]
    decoder_embed_dim: Optional[int] = _option("width of the decoder's blocks")
    decoder_input_dim: Optional[int] = _option("width of a language model's embeddings (default: --decoder-embed-dim)")
    decoder_output_dim: Optional[int] = _option("width of the last projection's input (default: --decoder-embed-dim)")
    decoder_conv_dim: Optional[int] = _option("channels of the decoder's convolutions (default: --decoder-embed-dim)")
    decoder_conv_heads: Optional[int] = _option(
        "heads of the decoder's convolutions: kernels a layer (default: --decoder-attention-heads)"
    )
    decoder_query_dim: Optional[int] = _option(
        "predict the decoder's dynamic kernels from a projection of this width (default: from the convolved input)"
    )
    decoder_query_heads: Optional[int] = _option("groups of heads that see a part of the query each (default: 1)")
    decoder_ffn_embed_dim: Optional[int] = _option("width of the decoder's feed-forward networks")
    decoder_layers: Optional[int] = _option("blocks of the decoder")
    decoder_attention_heads: Optional[int] = _option("heads of the decoder's attention, and of its convolutions")
    decoder_kernel_size_list: Optional[List[int]] = _option(
        "kernel width of each decoder block, for example '[3,7,15,31,31,31]'; one number serves all"
    )
    decoder_glu: Optional[bool] = _option("gate the input of the decoder's convolutions (GLU)")
    decoder_normalize_before: Optional[bool] = _option("layer norm before each sublayer of the decoder, not after")
    no_decoder_final_norm: Optional[bool] = _option("no layer norm after the last block where the norms come before")
    decoder_learned_pos: bool = _option("learned positions in the decoder instead of sinusoids", False)
    no_token_positional_embeddings: bool = _option("leave out the positions", False)
    no_scale_embedding: bool = _option("take the embeddings as they are, not times the root of their width", False)
    layernorm_embedding: bool = _option("layer norm after the embeddings and positions", False)
    share_decoder_input_output_embed: Optional[bool] = _option("one matrix for the decoder's embeddings and output")
    adaptive_softmax_cutoff: Optional[List[int]] = _option(
        "cut-offs of the adaptive softmax, for --criterion adaptive_loss, for example '60000,160000'; '[]': none"
    )
    adaptive_softmax_dropout: float = _option("dropout of the adaptive softmax's tail projections", 0.0)
    adaptive_softmax_factor: float = _option("each band of the adaptive softmax is this many times narrower", 4.0)
    decoder_layerdrop: float = _option("probability with which training leaves out a block of the decoder", 0.0)
    checkpoint_activations: bool = _option(
        "keep each block's input alone, and compute the block again for backward", False
    )


@dataclass
class LightConvConfig(DecoderOptions):
    """Options of ``pla_lightconv``, the encoder-decoder. None: the architecture's value."""

    encoder_conv_type: Optional[ConvType] = _option("the encoder: " + _CONV_TYPE_HELP)  # type: ignore[valid-type]
    encoder_embed_path: Optional[str] = _option("file with pre-trained source embeddings")
    encoder_embed_dim: Optional[int] = _option("width of the encoder's blocks and embeddings")
    encoder_conv_dim: Optional[int] = _option("channels of the encoder's convolutions (default: --encoder-embed-dim)")
    encoder_conv_heads: Optional[int] = _option(
        "heads of the encoder's convolutions: kernels a layer (default: --encoder-attention-heads)"
    )
    encoder_query_dim: Optional[int] = _option(
        "predict the encoder's dynamic kernels from a projection of this width (default: from the convolved input)"
    )
    encoder_query_heads: Optional[int] = _option("groups of heads that see a part of the query each (default: 1)")
    encoder_ffn_embed_dim: Optional[int] = _option("width of the encoder's feed-forward networks")
    encoder_layers: Optional[int] = _option("blocks of the encoder")
    encoder_attention_heads: Optional[int] = _option("heads of the encoder's attention or convolutions")
    encoder_kernel_size_list: Optional[List[int]] = _option(
        "kernel width of each encoder block, odd, for example '[3,7,15,31,31,31,31]'; one number serves all"
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

    adaptive_input: Optional[bool] = _option("embeddings whose width falls with the words' frequency")
    adaptive_input_cutoff: Optional[List[int]] = _option("cut-offs of the adaptive input, for example '60000,160000'")
    adaptive_input_factor: float = _option("each band of the adaptive input is this many times narrower", 4.0)
    tie_adaptive_weights: Optional[bool] = _option("one set of weights for the adaptive input and softmax")
    tie_adaptive_proj: Optional[bool] = _option("one set of projections for the adaptive input and softmax")
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")
