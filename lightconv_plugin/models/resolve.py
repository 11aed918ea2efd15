"""Complete and check the options: the user's come first, then the architecture's, then ``BASE``."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from lightconv_plugin.models.config import LightConvConfig

# The values of options that neither the user nor the architecture sets.
BASE_DECODER: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
    "input_dropout": 0.1,
    "decoder_conv_type": "dynamic",
    "decoder_query_heads": 1,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_kernel_size_list": [3, 7, 15, 31, 31, 31],
    "decoder_glu": True,
    "decoder_normalize_before": False,
    "no_decoder_final_norm": False,
    "share_decoder_input_output_embed": False,
}
BASE: dict[str, Any] = {
    **BASE_DECODER,
    "encoder_conv_type": "dynamic",
    "encoder_query_heads": 1,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 7,
    "encoder_attention_heads": 8,
    "encoder_kernel_size_list": [3, 7, 15, 31, 31, 31, 31],
    "encoder_glu": True,
    "encoder_normalize_before": False,
    "share_all_embeddings": False,
}

# fairseq's flags for these options take a value (--encoder-glu 0); from a dataclass alone they would be switches
VALUED_BOOLS = ("encoder_glu", "decoder_glu", "weight_softmax")
# mixers over all visible positions, which ignore the list of kernel widths
WITHOUT_KERNEL = ("attention", "average")
PROBABILITIES = (
    *("dropout", "attention_dropout", "relu_dropout", "input_dropout", "weight_dropout", "adaptive_softmax_dropout"),
    *("encoder_layerdrop", "decoder_layerdrop"),
)


def add_arguments(parser: ArgumentParser, config: FairseqDataclass) -> None:
    """Add a config's options as flags, without defaults, so that the architecture can set what the user has not."""
    for option in fields(config):
        flag, help = option.name.replace("_", "-"), option.metadata.get("help")
        if option.name in VALUED_BOOLS:
            kind: Any = {"type": utils.eval_bool, "nargs": "?", "const": True, "metavar": "BOOL"}
            parser.add_argument(f"--{flag}", **kind, help=f"{help} (1 or 0)")
        elif option.type == bool | None:
            opposite = flag.removeprefix("no-") if flag.startswith("no-") else f"no-{flag}"
            parser.add_argument(f"--{flag}", action="store_true", default=None, help=help)
            back = f"undo --{flag}, which an architecture may set"
            parser.add_argument(f"--{opposite}", dest=option.name, action="store_false", default=None, help=back)
    gen_parser_from_dataclass(parser, config, delete_default=True)


def fill(args: Any, values: Mapping[str, Any]) -> None:
    """Set each of ``values`` in ``args`` (flags or a YAML section) that is not set yet."""
    for name, value in values.items():
        if utils.safe_getattr(args, name, None) is None:
            setattr(args, name, value)


def to_namespace(cfg: Any, config: type[FairseqDataclass]) -> Namespace:
    """Return a flat copy of ``cfg`` (namespace or YAML section), with the dataclass' defaults for absent options."""
    values = {f.name: f.default for f in fields(config) if not f.name.startswith("_")}
    options: Any = OmegaConf.to_container(cfg) if isinstance(cfg, DictConfig) else vars(cfg)
    values.update({k: v for k, v in options.items() if v is not None or k not in values})
    # an interpolation that was not resolved becomes None
    return Namespace(**{k: None if isinstance(v, str) and v.startswith("${") else v for k, v in values.items()})


def resolve(cfg: Any) -> TransformerConfig:
    """Complete and check the encoder-decoder's options. Return them in the form that fairseq's models expect.

    Raises:
        ValueError: options that contradict each other or are invalid. The message names their flags.
    """
    args = to_namespace(cfg, LightConvConfig)
    fill(args, {**BASE, "max_source_positions": 1024, "max_target_positions": 1024})
    fill(args, {"decoder_embed_dim": args.encoder_embed_dim, "decoder_ffn_embed_dim": args.encoder_ffn_embed_dim})
    resolve_common(args)
    resolve_side(args, "encoder")
    resolve_side(args, "decoder", attends=not args.no_cross_attention)
    return TransformerConfig.from_namespace(args)


def resolve_common(args: Namespace) -> None:
    """Complete, in place, the options that all kinds of model share.

    Raises:
        ValueError: a probability outside [0, 1], or embeddings and an output layer that cannot share a matrix.
    """
    fill(args, {"decoder_input_dim": args.decoder_embed_dim, "decoder_output_dim": args.decoder_embed_dim})
    fill(args, {"weight_dropout": args.attention_dropout})
    fill(args, {"weight_normalization": "softmax" if args.weight_softmax else "none"})
    # an empty list overrides the architecture's list
    args.adaptive_softmax_cutoff = utils.eval_str_list(args.adaptive_softmax_cutoff or None, type=int)
    for name in PROBABILITIES:
        if not 0 <= getattr(args, name, 0.0) <= 1:
            raise ValueError(f"{_flag(name)} is {getattr(args, name)}; expected a probability, 0 <= p <= 1")
    shared = args.share_decoder_input_output_embed or getattr(args, "share_all_embeddings", False)
    if shared and not args.adaptive_softmax_cutoff and args.decoder_output_dim != args.decoder_input_dim:
        raise ValueError(
            f"embeddings of width {args.decoder_input_dim} and an output layer of width {args.decoder_output_dim} "
            "cannot share a matrix; leave --decoder-input-dim and --decoder-output-dim out, or give "
            "--no-share-all-embeddings and --no-share-decoder-input-output-embed"
        )


def resolve_side(args: Namespace, side: str, *, attends: bool = False) -> None:
    """Complete one stack's options in place, with one kernel width for each layer. ``side`` is "encoder" or "decoder".

    Args:
        attends: True if the blocks have attention to the source.

    Raises:
        ValueError: the numbers of kernel widths and of layers differ, or a size is invalid.
    """
    embed_dim, heads = getattr(args, f"{side}_embed_dim"), getattr(args, f"{side}_attention_heads")
    fill(args, {f"{side}_conv_dim": embed_dim, f"{side}_conv_heads": heads})
    layers, sizes = getattr(args, f"{side}_layers"), list(getattr(args, f"{side}_kernel_size_list"))
    if getattr(args, f"{side}_conv_type") in WITHOUT_KERNEL:
        sizes = [1]
    if len(sizes) == 1:
        sizes = sizes * layers
    if len(sizes) != layers:
        raise ValueError(
            f"--{side}-kernel-size-list has {len(sizes)} widths {sizes} for {layers} layers; give one width for each "
            f"layer, or one for all, or change --{side}-layers"
        )
    setattr(args, f"{side}_kernel_size_list", sizes)
    _check_sizes(args, side, attends=attends)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_sizes(args: Namespace, side: str, *, attends: bool) -> None:
    """Check that sizes are at least 1, that heads divide the widths they split, and that encoder kernels are odd.

    Sizes that the stack's mixer does not use are not checked.
    """
    kind, widths = getattr(args, f"{side}_conv_type"), ["embed_dim", "ffn_embed_dim"]
    divisors: list[tuple[str, str, str]] = []  # heads, the width that they split, their defaults
    if attends or kind in ("attention", "local_attention"):
        divisors.append(("attention_heads", "embed_dim", ""))
    if kind in ("lightweight", "dynamic"):
        default = f" (by default {_flag(f'{side}_attention_heads')} and {_flag(f'{side}_embed_dim')})"
        divisors.append(("conv_heads", "conv_dim", default))
    if kind == "dynamic":
        query = "conv_dim" if getattr(args, f"{side}_query_dim") is None else "query_dim"
        divisors += [("query_heads", "conv_heads", ""), ("query_heads", query, "")]
    for name in dict.fromkeys([*widths, *(name for *pair, _ in divisors for name in pair)]):
        if (value := getattr(args, f"{side}_{name}")) < 1:
            raise ValueError(f"{_flag(f'{side}_{name}')} is {value}; expected a whole number from 1 on")
    for heads, width, default in divisors:
        count, size = getattr(args, f"{side}_{heads}"), getattr(args, f"{side}_{width}")
        if size % count:
            raise ValueError(
                f"{_flag(f'{side}_{heads}')} {count} does not divide {_flag(f'{side}_{width}')} {size}{default}; "
                "choose a divisor"
            )
    if kind in WITHOUT_KERNEL:
        return
    sizes, odd = getattr(args, f"{side}_kernel_size_list"), side == "encoder"
    if wrong := [size for size in sizes if size < 1 or (odd and size % 2 == 0)]:
        expected = 'odd widths, since "same" padding needs a middle weight' if odd else "widths from 1 on"
        raise ValueError(f"--{side}-kernel-size-list holds {wrong}; expected {expected}, such as 3,7,15,31")


def check_bands(layer: str, cutoffs: Sequence[int], types: int, *, width: int, factor: float) -> None:
    """Check the bands of an adaptive layer.

    Args:
        layer: "input" or "softmax".
        cutoffs: the ends of the bands, except for the last band, which ends with the dictionary.
        types: number of entries in the dictionary.
        width: width of the first band.
        factor: each further band is this many times narrower than the previous one.

    Raises:
        ValueError: there are no cut-offs, they do not increase from 1 to at most ``types``, or the last band would
            have no width.
    """
    name = f"adaptive-{layer}-cutoff"
    if not cutoffs or [0, *cutoffs] != sorted({0, *cutoffs}) or cutoffs[-1] > types:
        raise ValueError(
            f"--{name} is {cutoffs}; expected increasing numbers from 1 to at most {types}, the size of the dictionary"
        )
    if not factor > 0 or width // factor ** len(cutoffs) < 1:
        raise ValueError(
            f"--adaptive-{layer}-factor is {factor:g}, which leaves band {len(cutoffs)} of --{name} {cutoffs} no "
            f"width: {width} / {factor:g}^{len(cutoffs)}. Give fewer bands, a factor nearer to 1, or a larger "
            f"--decoder-{'input' if layer == 'input' else 'output'}-dim"
        )
