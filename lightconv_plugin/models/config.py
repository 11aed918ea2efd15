"""The options of the encoder-decoder, from flags or YAML, and their resolution against an architecture.

An option that an architecture may set is None until then, so that it can be seen whether the user gave it: the
architecture fills what was left open, ``resolve`` the rest from BASE. Names that mean the same as in fairseq's own
lightconv are the same.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, List, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import II, DictConfig, OmegaConf

from lightconv_plugin.ops.dispatch import BACKENDS
from lightconv_plugin.ops.normalization import NORMALIZATIONS

CONV_TYPES = ("lightweight", "dynamic")

# What an option is when neither the user nor the architecture says: the paper's WMT model at the base size.
BASE: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
    "input_dropout": 0.1,
    "encoder_conv_type": "dynamic",
    "decoder_conv_type": "dynamic",
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 7,
    "encoder_attention_heads": 8,
    "encoder_kernel_size_list": [3, 7, 15, 31, 31, 31, 31],
    "encoder_glu": True,
    "encoder_normalize_before": False,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_kernel_size_list": [3, 7, 15, 31, 31, 31],
    "decoder_glu": True,
    "decoder_normalize_before": False,
    "share_decoder_input_output_embed": False,
    "share_all_embeddings": False,
}

# fairseq's flags for these take a value (--encoder-glu 0), where a dataclass alone would make switches of them
VALUED_BOOLS = ("encoder_glu", "decoder_glu", "weight_softmax")


def _option(help: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class LightConvConfig(FairseqDataclass):
    """Options of ``pla_lightconv``. None: the architecture's value."""

    dropout: Optional[float] = _option("dropout probability")
    attention_dropout: Optional[float] = _option("dropout probability of the source-target attention's weights")
    relu_dropout: Optional[float] = _option("dropout probability after the ReLU of the feed-forward network")
    input_dropout: Optional[float] = _option("dropout probability of what enters the convolution modules")
    weight_dropout: Optional[float] = _option(
        "DropConnect: probability with which a normalised kernel weight is dropped (default: --attention-dropout)"
    )
    weight_softmax: bool = _option("normalise the kernels by a softmax over their width", True)
    weight_normalization: Optional[ChoiceEnum(list(NORMALIZATIONS))] = _option(  # type: ignore[valid-type]
        "normalise the kernels otherwise than by a softmax (Table 6 of the paper)"
    )
    conv_backend: ChoiceEnum(["auto", *BACKENDS]) = _option(  # type: ignore[valid-type]
        "the code that runs the convolutions; a named backend is never replaced by another", "auto"
    )
    encoder_conv_type: Optional[ChoiceEnum(CONV_TYPES)] = _option("the encoder's convolution")  # type: ignore[valid-type]
    encoder_embed_path: Optional[str] = _option("file with pre-trained source embeddings")
    encoder_embed_dim: Optional[int] = _option("width of the encoder's blocks and embeddings")
    encoder_conv_dim: Optional[int] = _option("channels of the encoder's convolutions (default: --encoder-embed-dim)")
    encoder_conv_heads: Optional[int] = _option(
        "heads of the encoder's convolutions: kernels a layer (default: --encoder-attention-heads)"
    )
    encoder_ffn_embed_dim: Optional[int] = _option("width of the encoder's feed-forward networks")
    encoder_layers: Optional[int] = _option("blocks of the encoder")
    encoder_attention_heads: Optional[int] = _option("heads of the encoder's convolutions, unless --encoder-conv-heads")
    encoder_kernel_size_list: Optional[List[int]] = _option(
        "kernel width of each encoder block, odd, for example '[3,7,15,31,31,31,31]'; one number serves all"
    )
    encoder_glu: Optional[bool] = _option("gate the input of the encoder's convolutions (GLU)")
    encoder_normalize_before: Optional[bool] = _option("layer norm before each sublayer of the encoder, not after")
    encoder_learned_pos: bool = _option("learned positions in the encoder instead of sinusoids", False)
    decoder_conv_type: Optional[ChoiceEnum(CONV_TYPES)] = _option("the decoder's convolution")  # type: ignore[valid-type]
    decoder_embed_path: Optional[str] = _option("file with pre-trained target embeddings")
    decoder_embed_dim: Optional[int] = _option("width of the decoder's blocks (default: --encoder-embed-dim)")
    decoder_conv_dim: Optional[int] = _option("channels of the decoder's convolutions (default: --decoder-embed-dim)")
    decoder_conv_heads: Optional[int] = _option(
        "heads of the decoder's convolutions: kernels a layer (default: --decoder-attention-heads)"
    )
    decoder_ffn_embed_dim: Optional[int] = _option(
        "width of the decoder's feed-forward networks (default: --encoder-ffn-embed-dim)"
    )
    decoder_layers: Optional[int] = _option("blocks of the decoder")
    decoder_attention_heads: Optional[int] = _option("heads of the source-target attention")
    decoder_kernel_size_list: Optional[List[int]] = _option(
        "kernel width of each decoder block, for example '[3,7,15,31,31,31]'; one number serves all"
    )
    decoder_glu: Optional[bool] = _option("gate the input of the decoder's convolutions (GLU)")
    decoder_normalize_before: Optional[bool] = _option("layer norm before each sublayer of the decoder, not after")
    decoder_learned_pos: bool = _option("learned positions in the decoder instead of sinusoids", False)
    decoder_output_dim: Optional[int] = _option("width of the last projection's input (default: --decoder-embed-dim)")
    no_token_positional_embeddings: bool = _option("leave out the positions", False)
    share_decoder_input_output_embed: Optional[bool] = _option(
        "one matrix for the decoder's input and output embeddings"
    )
    share_all_embeddings: Optional[bool] = _option(
        "one matrix for the encoder's, the decoder's and the output embeddings; needs a joined dictionary"
    )
    adaptive_softmax_cutoff: Optional[List[int]] = _option(
        "cut-offs of the adaptive softmax, for --criterion adaptive_loss, for example '4000,20000'"
    )
    adaptive_softmax_dropout: float = _option("dropout of the adaptive softmax's tail projections", 0.0)
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


def add_arguments(parser: ArgumentParser, config: FairseqDataclass) -> None:
    """Add a config's options as flags. None has a default: what is not given stays absent, for the architecture."""
    for name in VALUED_BOOLS:
        if name in {f.name for f in fields(config)}:
            help = type(config).__dataclass_fields__[name].metadata["help"] + ": 1 or 0"
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=utils.eval_bool, nargs="?", const=True, metavar="BOOL", help=help)
    gen_parser_from_dataclass(parser, config, delete_default=True)


def fill(args: Any, values: Mapping[str, Any]) -> None:
    """Give ``args`` (flags or a YAML section) each value that the user has not."""
    for name, value in values.items():
        if utils.safe_getattr(args, name, None) is None:
            setattr(args, name, value)


def to_namespace(cfg: Any, config: type[FairseqDataclass]) -> Namespace:
    """A flat copy of ``cfg`` (namespace, dict or YAML section), with the dataclass' defaults for what is absent."""
    values = {f.name: f.default for f in fields(config) if not f.name.startswith("_")}
    given = OmegaConf.to_container(cfg) if isinstance(cfg, DictConfig) else vars(cfg)
    values.update({k: v for k, v in given.items() if v is not None or k not in values})
    return Namespace(**values)


def resolve(cfg: Any) -> TransformerConfig:
    """Complete the options and check them; returns the form that fairseq's encoder and decoder take.

    Raises:
        ValueError: options that contradict each other, in a sentence.
    """
    args = to_namespace(cfg, LightConvConfig)
    fill(args, BASE)
    fill(args, {"decoder_embed_dim": args.encoder_embed_dim, "decoder_ffn_embed_dim": args.encoder_ffn_embed_dim})
    fill(args, {"decoder_output_dim": args.decoder_embed_dim, "weight_dropout": args.attention_dropout})
    args.decoder_input_dim = args.decoder_embed_dim
    for name in ("max_source_positions", "max_target_positions"):
        if not isinstance(getattr(args, name), int):  # an interpolation that nobody resolved
            setattr(args, name, 1024)
    for side in ("encoder", "decoder"):
        resolve_side(args, side)
    resolve_normalization(args)
    return TransformerConfig.from_namespace(args)


def resolve_side(args: Namespace, side: str) -> None:
    """Complete and check one stack's options in place; ``side`` is "encoder" or "decoder"."""

    def get(name: str) -> Any:
        return getattr(args, f"{side}_{name}")

    flag = "--" + side
    fill(args, {f"{side}_conv_dim": get("embed_dim"), f"{side}_conv_heads": get("attention_heads")})
    sizes = list(get("kernel_size_list"))
    layers = get("layers")
    if len(sizes) == 1:
        sizes = sizes * layers
    if len(sizes) != layers:
        raise ValueError(
            f"{flag}-kernel-size-list has {len(sizes)} widths {sizes} for {layers} layers; give one width for each "
            f"layer, or one for all, or change {flag}-layers"
        )
    setattr(args, f"{side}_kernel_size_list", sizes)
    if get("conv_dim") % get("conv_heads"):
        raise ValueError(
            f"{flag}-conv-heads {get('conv_heads')} does not divide {flag}-conv-dim {get('conv_dim')}; "
            f"choose a divisor (heads default to {flag}-attention-heads, the dimension to {flag}-embed-dim)"
        )
    even = [size for size in sizes if size % 2 == 0]
    if side == "encoder" and even:
        raise ValueError(
            f'--encoder-kernel-size-list holds even widths {even}, for which "same" padding has no middle; '
            "use odd ones, such as 3,7,15,31"
        )


def resolve_normalization(args: Namespace) -> None:
    """Settle ``--weight-softmax`` and ``--weight-normalization`` in place: they are one choice."""
    if args.weight_normalization is None:
        args.weight_normalization = "softmax" if args.weight_softmax else "none"
    elif not args.weight_softmax and args.weight_normalization == "softmax":
        raise ValueError("--weight-softmax 0 and --weight-normalization softmax contradict each other; give one")
