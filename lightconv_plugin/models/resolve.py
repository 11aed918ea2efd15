"""Complete and check the options: the user's come first, then the architecture's, then ``BASE``."""

from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from lightconv_plugin.models.config import LightConvConfig

# What an option is when neither the user nor the architecture says.
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

# fairseq's flags for these take a value (--encoder-glu 0), where a dataclass alone would make switches of them
VALUED_BOOLS = ("encoder_glu", "decoder_glu", "weight_softmax")
# these mix all positions they may see, whatever the kernel list says
WITHOUT_KERNEL = ("attention", "average")


class Switch(Action):
    """Switch of two spellings: the first sets the option, the second takes back what an architecture sets."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string == self.option_strings[0])


def add_arguments(parser: ArgumentParser, config: FairseqDataclass) -> None:
    """Add a config's options as flags. None has a default: what is not given stays absent, for the architecture."""
    options = {f.name: f for f in fields(config)}
    for name in VALUED_BOOLS:
        if name in options:
            help = options[name].metadata["help"] + " (1 or 0)"
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=_boolean, nargs="?", const=True, metavar="BOOL", help=help)
    for name, option in options.items():
        if option.type == bool | None and name not in VALUED_BOOLS:
            flag = name.replace("_", "-")
            opposite = flag.removeprefix("no-") if flag.startswith("no-") else f"no-{flag}"
            parser.add_argument(f"--{flag}", f"--{opposite}", action=Switch, help=option.metadata["help"])
    gen_parser_from_dataclass(parser, config, delete_default=True)


def _boolean(text: str) -> bool:
    """Return the value of 1, 0, true or false, in letters of any case."""
    if text.lower() not in ("1", "0", "true", "false"):
        raise ArgumentTypeError(f"got {text}; expected 1 or 0")
    return text.lower() in ("1", "true")


def fill(args: Any, values: Mapping[str, Any]) -> None:
    """Give ``args`` (flags or a YAML section) each value that the user has not."""
    for name, value in values.items():
        if utils.safe_getattr(args, name, None) is None:
            setattr(args, name, value)


def to_namespace(cfg: Any, config: type[FairseqDataclass]) -> Namespace:
    """A flat copy of ``cfg`` (namespace or YAML section), with the dataclass' defaults for what is absent."""
    values = {f.name: f.default for f in fields(config) if not f.name.startswith("_")}
    given: Any = OmegaConf.to_container(cfg) if isinstance(cfg, DictConfig) else vars(cfg)
    values.update({k: v for k, v in given.items() if v is not None or k not in values})
    return Namespace(**values)


def resolve(cfg: Any) -> TransformerConfig:
    """Complete and check the encoder-decoder's options; returns the form that fairseq's encoder and decoder take.

    Raises:
        ValueError: options that contradict each other, in a sentence.
    """
    args = to_namespace(cfg, LightConvConfig)
    fill(args, BASE)
    fill(args, {"decoder_embed_dim": args.encoder_embed_dim, "decoder_ffn_embed_dim": args.encoder_ffn_embed_dim})
    for name in ("max_source_positions", "max_target_positions"):
        if not isinstance(getattr(args, name), int):  # an interpolation that nobody resolved
            setattr(args, name, 1024)
    if args.decoder_input_dim not in (None, args.decoder_embed_dim):
        raise ValueError(
            f"--decoder-input-dim is {args.decoder_input_dim} and --decoder-embed-dim {args.decoder_embed_dim}; "
            "an input width of its own is for language models: leave it out"
        )
    resolve_common(args)
    resolve_side(args, "encoder")
    resolve_side(args, "decoder")
    return TransformerConfig.from_namespace(args)


def resolve_common(args: Namespace) -> None:
    """Complete in place what the kinds of model share."""
    fill(args, {"decoder_input_dim": args.decoder_embed_dim, "decoder_output_dim": args.decoder_embed_dim})
    fill(args, {"weight_dropout": args.attention_dropout})
    # an empty list takes an architecture's back
    args.adaptive_softmax_cutoff = utils.eval_str_list(args.adaptive_softmax_cutoff or None, type=int)
    shared = args.share_decoder_input_output_embed or getattr(args, "share_all_embeddings", False)
    if shared and not args.adaptive_softmax_cutoff and args.decoder_output_dim != args.decoder_input_dim:
        raise ValueError(
            f"embeddings of width {args.decoder_input_dim} and an output layer of width {args.decoder_output_dim} "
            "cannot share a matrix; leave --decoder-input-dim and --decoder-output-dim out, or give "
            "--no-share-all-embeddings and --no-share-decoder-input-output-embed"
        )
    if args.weight_normalization is None:
        args.weight_normalization = "softmax" if args.weight_softmax else "none"
    elif not args.weight_softmax and args.weight_normalization == "softmax":
        raise ValueError("--weight-softmax 0 and --weight-normalization softmax contradict each other; give one")


def resolve_side(args: Namespace, side: str) -> None:
    """Complete and check one stack's options in place; ``side`` is "encoder" or "decoder"."""

    def get(name: str) -> Any:
        return getattr(args, f"{side}_{name}")

    flag = "--" + side
    fill(args, {f"{side}_conv_dim": get("embed_dim"), f"{side}_conv_heads": get("attention_heads")})
    sizes = _kernel_sizes(args, side)
    setattr(args, f"{side}_kernel_size_list", sizes)
    setattr(args, f"{side}_layers", len(sizes))
    kind = get("conv_type")
    if kind not in ("lightweight", "dynamic") and get("conv_dim") != get("embed_dim"):
        raise ValueError(f"{flag}-conv-dim is for {flag}-conv-type lightweight or dynamic; got {kind}: leave it out")
    if kind != "dynamic" and (get("query_dim") is not None or get("query_heads") > 1):
        option = "heads" if get("query_dim") is None else "dim"
        raise ValueError(f"{flag}-query-{option} is for {flag}-conv-type dynamic; got {kind}: leave it out")


def _kernel_sizes(args: Namespace, side: str) -> list[int]:
    """One width a layer."""
    sizes = list(getattr(args, f"{side}_kernel_size_list"))
    layers = getattr(args, f"{side}_layers")
    if getattr(args, f"{side}_conv_type") in WITHOUT_KERNEL:
        return [1] * layers
    if len(sizes) == 1:
        sizes = sizes * layers
    if len(sizes) != layers:
        raise ValueError(
            f"--{side}-kernel-size-list has {len(sizes)} widths {sizes} for {layers} layers; give one width for each "
            f"layer, or one for all, or change --{side}-layers"
        )
    return sizes


def check_bands(cfg: Any, kind: str, types: int) -> None:
    """Refuse cut-offs of the adaptive "softmax" or "input" that do not part a dictionary of ``types`` into bands.

    Raises:
        ValueError: they do not rise from above 0, or end beyond the dictionary.
    """
    cutoffs = getattr(cfg, f"adaptive_{kind}_cutoff") or []
    if [0, *cutoffs] != sorted({0, *cutoffs}) or max(cutoffs, default=0) > types:
        raise ValueError(
            f"--adaptive-{kind}-cutoff is {cutoffs}; expected numbers that rise, from 1 to at most {types}, the types "
            "of the dictionary"
        )
