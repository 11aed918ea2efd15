"""Turn a checkpoint of fairseq's own ``lightconv`` or ``lightconv_lm`` into one of this plugin's models.

    python -m lightconv_plugin.convert IN OUT
    python -m lightconv_plugin.convert model.pt FOLDER/model.safetensors     and back

An OUT that ends in .safetensors gets the parameters in that format, and config.json beside it the settings. fairseq
reads it as it reads any checkpoint. Between the two formats IN may also be a checkpoint of this plugin's models.

IN may come from any version of fairseq: with its settings as `args` or as `cfg`, in torch's old or new file format,
in float32 or float16, with parameters under the names of fairseq 0.12.2 and earlier or under later ones. It is read
with torch's check of types on: nothing in it is run. OUT says by itself what model it is, and serves fairseq-generate,
-interactive, -validate and --finetune-from-model with --user-dir lightconv_plugin, and from_pretrained(). The
optimiser's state is left behind. An existing OUT is replaced only if this command wrote it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY, lightconv, lightconv_lm
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightconv_plugin.compat.checkpoints import refusing, write_state
from lightconv_plugin.compat.safetensors import SUFFIX, settings_of, write_safetensors
from lightconv_plugin.models.config import LightConvConfig, LightConvLanguageModelConfig
from lightconv_plugin.models.encoder_decoder import LightConvModel
from lightconv_plugin.models.language_model import LightConvLanguageModel, resolve_language_model
from lightconv_plugin.models.resolve import resolve

Tensors = dict[str, Tensor]
MARK = "lightconv_plugin.convert"  # in a checkpoint's extra_state: this may be replaced


class ConversionError(Exception):
    """A file that cannot be converted; the message says what was found and what to do."""


@dataclass(frozen=True)
class Kind:
    """A model of fairseq's and the one of ours that it becomes."""

    theirs: type
    ours: type
    name: str  # as registered
    config: type
    resolve: Callable[[Any], Any]  # completes its options
    sides: tuple[str, ...]


KINDS = (
    Kind(lightconv.LightConvModel, LightConvModel, "pla_lightconv", LightConvConfig, resolve, ("encoder", "decoder")),
    Kind(
        lightconv_lm.LightConvLanguageModel,
        LightConvLanguageModel,
        "pla_lightconv_lm",
        LightConvLanguageModelConfig,
        resolve_language_model,
        ("decoder",),
    ),
)


@dataclass(frozen=True)
class Report:
    """The record of a conversion."""

    kind: str
    config: dict[str, Any]
    stacks: dict[str, Any]  # the sides' options, complete
    layout: str
    parameters: int
    dropped: list[str]


_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")
# Parts of a block: fairseq's names at one time or another, and ours.
_BOTH = {"linear1": "mixer.in_proj", "linear2": "mixer.out_proj", "fc1": "ffn.fc1", "fc2": "ffn.fc2"}
_PARTS = {
    "encoder": {
        **_BOTH,
        **dict.fromkeys(("layer_norms.0", "layer_norm1"), "mixer_residual.layer_norm"),
        **dict.fromkeys(("layer_norms.1", "layer_norm2"), "ffn_residual.layer_norm"),
    },
    "decoder": {
        **_BOTH,
        "conv_layer_norm": "mixer_residual.layer_norm",
        "encoder_attn_layer_norm": "encoder_attn_residual.layer_norm",
        "final_layer_norm": "ffn_residual.layer_norm",
    },
}
# Not used by fairseq's models either: memory that was never set, markers, tables that are computed.
_UNUSED = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights)|layers\.\d+\.conv\.conv_bias)"
)
_EARLY = re.compile(r"encoder\.layers\.\d+\.layer_norms\.|decoder\.embed_out$|.*\.in_proj_(weight|bias)$")
_LATE = re.compile(r"encoder\.layers\.\d+\.layer_norm[12]\.|decoder\.output_projection\.|.*\.conv\.conv_bias$")


def convert_parameters(theirs: Tensors, *, shared_output: bool, sides: Iterable[str]) -> tuple[Tensors, list[str]]:
    """Parameters under our names, and the names of those that are not used.

    Args:
        theirs: fairseq's, in any of its layouts.
        shared_output: the decoder's output is its embedding, and may be missing in ``theirs``.
        sides: "encoder", "decoder".
    """
    result: Tensors = {}
    dropped = []
    for key, tensor in theirs.items():
        if _UNUSED.fullmatch(key):
            dropped.append(key)
            continue
        for name, value in _renamed(key, tensor):
            if name in result:
                raise ConversionError(
                    f"the parameter {name} is there twice, under names of two versions of fairseq (one is {key}); "
                    "expected one of them. The file was put together from two; use the original"
                )
            result[name] = value
    if shared_output and "decoder.embed_tokens.weight" in result:
        result.setdefault("decoder.output_projection.weight", result["decoder.embed_tokens.weight"])
    for side in sides:
        result[f"{side}.version"] = torch.tensor([3.0])  # of fairseq's Transformer; below, it drops the last norm
    return result, dropped


def _renamed(key: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Our name or names for a parameter of fairseq's; its own name where we have none."""
    if key == "decoder.embed_out":
        return [("decoder.output_projection.weight", tensor)]
    match = _LAYER.fullmatch(key)
    if match is None:
        return [(key, tensor)]
    side, number, rest = match.groups()
    block = f"{side}.layers.{number}."
    if rest == "conv.weight":  # (H, 1, K), or (H, K) by fairseq's CUDA code
        return [(block + "mixer.conv.weight", tensor.squeeze(1) if tensor.dim() == 3 else tensor)]
    if rest == "conv.weight_linear.weight":
        return [(block + "mixer.conv.weight_linear.weight", tensor)]
    if rest in ("encoder_attn.in_proj_weight", "encoder_attn.in_proj_bias"):  # until 2019: query, key, value in one
        part = rest.rpartition("_")[2]
        return [
            (f"{block}encoder_attn.{name}_proj.{part}", third.clone())
            for name, third in zip("qkv", tensor.chunk(3), strict=True)
        ]
    part, _, leaf = rest.rpartition(".")
    return [(f"{block}{_PARTS[side].get(part, part)}.{leaf}", tensor)]


def layout_of(keys: Iterable[str]) -> str:
    """Return which versions of fairseq name parameters so, in words."""
    names = list(keys)
    early, late = any(map(_EARLY.match, names)), any(map(_LATE.match, names))
    if early and late:
        return "names of fairseq 0.12.2 and earlier mixed with later ones"
    if late:
        return "names of fairseq after 0.12.2"
    return "names of fairseq 0.12.2 and earlier" if early else "names that all versions of fairseq share"


def find_kind(model: argparse.Namespace, *, ours: bool = False) -> tuple[str, Kind, bool]:
    """Return the architecture that the settings name, its kind, and True for this plugin's, allowed with ``ours``."""
    name = str(getattr(model, "_name", None) or getattr(model, "arch", None))
    cls = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    for kind in KINDS:
        if cls is kind.ours and not ours:
            raise ConversionError(f"its architecture is {name}, already one of this plugin's; use it as it is")
        if cls in (kind.ours, kind.theirs):
            return name, kind, cls is kind.ours
    raise ConversionError(
        f"its architecture is {name}, not a LightConv or DynamicConv model of fairseq; expected a checkpoint of "
        "lightconv or lightconv_lm (other models need no conversion: fairseq loads them by itself)"
    )


def convert_options(kind: Kind, name: str, model: argparse.Namespace, parameters: Iterable[str]) -> dict[str, Any]:
    """Our options, every one of them with its value, so that no default matters later.

    Args:
        kind: the model that they are of.
        name: fairseq's architecture.
        model: fairseq's settings, which the architecture completes.
        parameters: names of the parameters under our names.
    """
    theirs = argparse.Namespace(**vars(model))
    ARCH_CONFIG_REGISTRY[name](theirs)
    if getattr(theirs, "character_embeddings", False):
        raise ConversionError("it has --character-embeddings; expected one embedding a word, or adaptive input")
    known = {field.name: field.default for field in fields(kind.config) if not field.name.startswith("_")}
    options = {option: getattr(theirs, option, default) for option, default in known.items()}
    options |= _own_options(kind, theirs, set(parameters))
    return {option: options[option] for option in known}


# options that some versions of fairseq do not write, or not as a float, and what they mean then
_FLOATS = {
    "dropout": 0.1,
    **dict.fromkeys(("attention_dropout", "relu_dropout", "adaptive_softmax_dropout"), 0.0),
    **dict.fromkeys(("adaptive_input_factor", "adaptive_softmax_factor"), 4.0),
}
_POSITIONS = ("max_source_positions", "max_target_positions", "tokens_per_sample")


def _own_options(kind: Kind, theirs: argparse.Namespace, parameters: set[str]) -> dict[str, Any]:
    """The options that are not simply fairseq's under the same name."""
    softmax = bool(getattr(theirs, "weight_softmax", True))
    floats = {name: getattr(theirs, name, None) for name in _FLOATS}
    own: dict[str, Any] = {
        "weight_softmax": softmax,
        "weight_normalization": "softmax" if softmax else "none",
        "conv_backend": "auto",
        "no_decoder_final_norm": "decoder.layer_norm.weight" not in parameters,
        "share_decoder_input_output_embed": shares_output(theirs),
        **{name: _positions(theirs, name) for name in _POSITIONS},
        **{name: _numbers(theirs, name) for name in ("adaptive_softmax_cutoff", "adaptive_input_cutoff")},
        **{name: float(_FLOATS[name] if value is None else value) for name, value in floats.items()},
    }
    for side in kind.sides:
        own |= {
            f"{side}_conv_type": getattr(theirs, f"{side}_conv_type", "dynamic"),
            f"{side}_conv_heads": getattr(theirs, f"{side}_attention_heads"),
            f"{side}_kernel_size_list": _numbers(theirs, f"{side}_kernel_size_list"),
            f"{side}_query_heads": 1,
            f"{side}_embed_path": None,  # the embeddings are in the checkpoint
        }
    if "encoder" in kind.sides:
        own["decoder_input_dim"] = theirs.decoder_embed_dim
    return own


def shares_output(theirs: argparse.Namespace) -> bool:
    """Return True if the decoder's output layer is its embedding."""
    return any(getattr(theirs, f"share_{what}", False) for what in ("all_embeddings", "decoder_input_output_embed"))


def _positions(theirs: argparse.Namespace, name: str) -> int:
    return int(getattr(theirs, name, None) or getattr(theirs, "tokens_per_sample", None) or 1024)


def _numbers(theirs: argparse.Namespace, name: str) -> list[int] | None:
    value = getattr(theirs, name, None)
    return None if value is None else [int(number) for number in utils.eval_str_list(value, type=int)]


def check(kind: Kind, options: dict[str, Any], parameters: Tensors) -> None:
    """Compare the parameters with those of our model of these options, built without memory."""
    dictionaries = {side: _dictionary(parameters, side) for side in kind.sides}
    target = dictionaries["decoder"]
    source = target if options.get("share_all_embeddings") else dictionaries[kind.sides[0]]
    task = argparse.Namespace(
        source_dictionary=source, target_dictionary=target, dictionary=target, output_dictionary=target
    )
    try:
        with torch.device("meta"):
            model = kind.ours.build_model(argparse.Namespace(**options), task)  # type: ignore[attr-defined]
    except ValueError as error:
        raise ConversionError(f"its options do not make a model of this plugin: {error}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    unknown, missing = sorted(found.keys() - expected.keys()), sorted(expected.keys() - found.keys())
    other = sorted(name for name in found.keys() & expected.keys() if found[name] != expected[name])
    problems = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in (("unknown", unknown), ("missing", missing), ("of another shape", other))
        if names
    ]
    if other:
        problems.append(f"for example {other[0]}: {found[other[0]]} in the file, {expected[other[0]]} by its options")
    if problems:
        raise ConversionError(
            f"its parameters are not those of the model that its options describe: {'; '.join(problems)}. Use the "
            "file as fairseq wrote it; models with changed code cannot be converted"
        )


def _dictionary(parameters: Tensors, side: str) -> Dictionary:
    """As many words as the embeddings have rows."""
    pattern = re.compile(rf"{side}\.embed_tokens\.(embeddings\.\d+\.0\.)?weight")
    rows = sum(tensor.shape[0] for name, tensor in parameters.items() if pattern.fullmatch(name))
    result = Dictionary()
    for number in range(rows - len(result)):
        result.add_symbol(f"w{number}")
    return result


def convert(source: Path, *, ours: bool = False) -> tuple[dict[str, Any], Report]:
    """A checkpoint of ours from the file ``source``, in memory, and what was done.

    ``ours``: a checkpoint of this plugin's is taken too; its parameters and options stay as they are.

    Raises:
        ConversionError: not a checkpoint that can be converted, in a sentence.
        compat.CheckpointError: damaged, not readable, or refused for the types in it.
        OSError: no such file, no permission.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(source))
    theirs = state.get("model")
    if not isinstance(theirs, dict) or not isinstance(state.get("cfg"), DictConfig):
        raise ConversionError(f"it holds {', '.join(state)}; expected a model and its settings (args or cfg)")
    cfg: Any = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    # a component of fairseq's that has no dataclass, such as --optimizer adafactor, has a namespace
    cfg = {part: vars(own) if isinstance(own, argparse.Namespace) else own for part, own in cfg.items()}
    model = argparse.Namespace(**(cfg.get("model") or {}))
    name, kind, is_ours = find_kind(model, ours=ours)
    if is_ours:
        parameters, layout = theirs, "names of this plugin"
        dropped: list[str] = []
        options = {option: value for option, value in vars(model).items() if option != "_name"}
    else:
        layout = layout_of(theirs)
        shared = shares_output(model) and getattr(model, "adaptive_softmax_cutoff", None) is None
        parameters, dropped = convert_parameters(theirs, shared_output=shared, sides=kind.sides)
        options = convert_options(kind, name, model, parameters)
        check(kind, options, parameters)
        name = kind.name
    cfg["model"] = {"_name": name, **options}
    result = {
        "args": None,
        "cfg": cfg,
        "model": parameters,
        "optimizer_history": [
            {key: value for key, value in entry.items() if key != "optimizer"} for entry in state["optimizer_history"]
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "written_by": MARK},
        "task_state": state.get("task_state") or {},
    }
    weights = [t for name, t in parameters.items() if not name.endswith((".version", "._float_tensor"))]
    count = sum({tensor.data_ptr(): tensor.numel() for tensor in weights}.values())
    complete = kind.resolve(argparse.Namespace(**options))
    stacks = {side: getattr(complete, side) for side in kind.sides}
    return result, Report(name, options, stacks, layout, count, dropped)


def save(state: dict[str, Any], out: Path) -> None:
    """Write a checkpoint, whole or not at all; see also ``write_state`` and ``write_safetensors``."""
    packed = out.suffix == SUFFIX
    there = next(filter(os.path.lexists, (out, settings_of(out)) if packed else (out,)), None)
    if there is not None and not _is_ours(out):
        raise ConversionError(
            f"{there} exists, and is no checkpoint that this command wrote: give another name for OUT"
        )
    if packed and there == settings_of(out):
        raise ConversionError(f"{there} is of another model than {out.name}: give OUT a folder of its own")
    out.parent.mkdir(parents=True, exist_ok=True)
    (write_safetensors if packed else write_state)(state, out)


def _is_ours(out: Path) -> bool:
    try:
        if out.suffix == SUFFIX:
            return json.loads(settings_of(out).read_text(encoding="utf-8"))["written_by"] == MARK
        state = torch.load(out, map_location="cpu", weights_only=True, mmap=True) if out.is_file() else {}
        return state["extra_state"]["written_by"] == MARK
    except Exception:  # torch has many for what is no checkpoint
        return False


def describe(report: Report) -> list[str]:
    lines = [f"{report.kind}, {report.parameters:,} parameters; found {report.layout}"]
    for side, stack in report.stacks.items():
        size, mixer, more = f"{stack.layers} layers of {stack.embed_dim}", stack.conv_type, ""
        if mixer in ("lightweight", "dynamic"):
            mixer += f" convolutions {'with' if stack.glu else 'without'} GLU"
            more = f", {stack.conv_heads} heads, kernels {stack.kernel_size_list}"
        lines.append(f"{side}: {mixer}, {size}{more}")
    kinds = sorted({re.sub(r"\.\d+\.", ".N.", key) for key in report.dropped})
    lines.append(f"left out, since no model uses them: {len(report.dropped)} ({', '.join(kinds) or 'none'})")
    return lines


def main(arguments: list[str] | None = None) -> None:
    """The command; ends the process with a sentence and status 1 where it refuses."""
    parser = argparse.ArgumentParser(
        prog="python -m lightconv_plugin.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="IN", type=Path, help="checkpoint of a lightconv or lightconv_lm")
    parser.add_argument("out", metavar="OUT", type=Path, help="checkpoint to write; replaces only what this wrote")
    given = parser.parse_args(arguments)
    if given.source.exists() and given.out.exists() and given.out.samefile(given.source):
        sys.exit(f"error: IN and OUT are both {given.source}; give another OUT, so that the original stays")
    if given.out.is_dir():
        sys.exit(f"error: {given.out} is a folder; give the name of the checkpoint to write")
    with refusing(f"convert {given.source}", ConversionError, given.out):
        state, report = convert(given.source, ours=SUFFIX in (given.source.suffix, given.out.suffix))
        save(state, given.out)
    print("\n".join([*describe(report), f"wrote {given.out}"]))


if __name__ == "__main__":
    main()
