"""Convert a checkpoint of fairseq's own ``lightconv`` or ``lightconv_lm`` to one of this plugin's models.

    python -m lightconv_plugin.convert IN OUT
    python -m lightconv_plugin.convert model.pt FOLDER/model.safetensors     (and the reverse)

If OUT ends in .safetensors, it gets the parameters in that format, and config.json in the same folder gets the
settings. fairseq reads it like any checkpoint. If IN already holds one of this plugin's models, it is written to OUT
without conversion.

IN may come from any version of fairseq: with its settings as `args` or as `cfg`, in torch's old or new file format,
in float32 or float16, with parameters under the names of fairseq 0.12.2 and earlier or under later ones. It is loaded
with torch's check of types, so that no code in it runs. OUT contains all settings of its model. It works with
fairseq-generate, -interactive, -validate and --finetune-from-model (with --user-dir lightconv_plugin), and with
from_pretrained(). The optimiser's state is not copied. OUT must be a new file: nothing is replaced.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Iterable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args, get_origin

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    lightconv,
    lightconv_lm,
)
from omegaconf import OmegaConf
from torch import Tensor, nn

import lightconv_plugin.register  # noqa: F401  our models
from lightconv_plugin.compat.checkpoints import CheckpointError, refusing, write_state
from lightconv_plugin.compat.safetensors import SUFFIX, settings_of, write_safetensors

Tensors = dict[str, Tensor]

# fairseq's models, and the names of our models that they are converted to
OURS = {lightconv.LightConvModel: "pla_lightconv", lightconv_lm.LightConvLanguageModel: "pla_lightconv_lm"}
SIDES = {"pla_lightconv": ("encoder", "decoder"), "pla_lightconv_lm": ("decoder",)}

_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")
# Parts of a block: the names in any version of fairseq, and our names.
_PARTS = {
    "linear1": "mixer.in_proj",
    "conv.weight_linear": "mixer.conv.weight_linear",
    "linear2": "mixer.out_proj",
    "fc1": "ffn.fc1",
    "fc2": "ffn.fc2",
    **dict.fromkeys(("layer_norms.0", "layer_norm1", "conv_layer_norm"), "mixer_residual.layer_norm"),
    "encoder_attn_layer_norm": "encoder_attn_residual.layer_norm",
    **dict.fromkeys(("layer_norms.1", "layer_norm2", "final_layer_norm"), "ffn_residual.layer_norm"),
}
# Entries that fairseq's models do not use either: uninitialised memory, markers, and tables that are computed.
_UNUSED = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights)|layers\.\d+\.conv\.conv_bias)"
)


def convert_parameters(theirs: Tensors, *, shared_output: bool, sides: Iterable[str]) -> tuple[Tensors, list[str]]:
    """Return the parameters under our names, and the names of unused parameters.

    Args:
        theirs: fairseq's parameters, in the layout of any version.
        shared_output: True if the decoder's output layer is its embedding, which ``theirs`` may contain only once.
        sides: the sides of the model: "encoder", "decoder".
    """
    dropped = [key for key in theirs if _UNUSED.fullmatch(key)]
    result: Tensors = {}
    for key, tensor in theirs.items():
        if key not in dropped:
            result.update(_renamed(key, tensor))
    if shared_output and "decoder.embed_tokens.weight" in result:
        result.setdefault("decoder.output_projection.weight", result["decoder.embed_tokens.weight"])
    for side in sides:
        result[f"{side}.version"] = torch.tensor([3.0])  # of fairseq's Transformer; below 3, the last norm is dropped
    return result, dropped


def _renamed(key: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Return our names and tensors for one of fairseq's parameters: one pair or several. An unknown name stays."""
    if key == "decoder.embed_out":
        return [("decoder.output_projection.weight", tensor)]
    match = _LAYER.fullmatch(key)
    if match is None:
        return [(key, tensor)]
    side, number, rest = match.groups()
    block = f"{side}.layers.{number}."
    if rest == "conv.weight":  # (H, 1, K), or (H, K) by fairseq's CUDA code
        return [(block + "mixer.conv.weight", tensor.squeeze(1) if tensor.dim() == 3 else tensor)]
    if rest in ("encoder_attn.in_proj_weight", "encoder_attn.in_proj_bias"):  # until 2019: query, key, value in one
        part = rest.rpartition("_")[2]
        return [
            (f"{block}encoder_attn.{name}_proj.{part}", third.clone())
            for name, third in zip("qkv", tensor.chunk(3), strict=True)
        ]
    part, _, leaf = rest.rpartition(".")
    return [(f"{block}{_PARTS.get(part, part)}.{leaf}", tensor)]


def find_model(settings: argparse.Namespace) -> tuple[str, str, bool]:
    """Return the architecture in the settings, the name of our model for it, and True if it already is our model.

    Raises:
        compat.CheckpointError: the settings are of another model.
    """
    architecture = str(getattr(settings, "_name", None) or getattr(settings, "arch", None))
    cls = ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY.get(architecture)
    for name in SIDES:
        if cls is MODEL_REGISTRY[name] or OURS.get(cls) == name:
            return architecture, name, cls is MODEL_REGISTRY[name]
    raise CheckpointError(
        f"its architecture is {architecture}, not a LightConv or DynamicConv model of fairseq; expected a checkpoint "
        "of lightconv or lightconv_lm (other models need no conversion: fairseq loads them by itself)"
    )


def convert_options(
    name: str, architecture: str, settings: argparse.Namespace, parameters: Iterable[str]
) -> dict[str, Any]:
    """Return the values of all our options, so that the model does not depend on later defaults.

    Args:
        name: the name of our model.
        architecture: the name of fairseq's architecture.
        settings: fairseq's settings, to be completed by the architecture.
        parameters: our names of the parameters.
    """
    theirs = argparse.Namespace(**vars(settings))
    ARCH_CONFIG_REGISTRY[architecture](theirs)
    softmax, sample = bool(getattr(theirs, "weight_softmax", True)), getattr(theirs, "tokens_per_sample", None)
    options: dict[str, Any] = {
        "weight_softmax": softmax,
        "weight_normalization": "softmax" if softmax else "none",
        "no_decoder_final_norm": "decoder.layer_norm.weight" not in parameters,
        "share_decoder_input_output_embed": shares_output(theirs),
    }
    for positions in ("max_source_positions", "max_target_positions", "tokens_per_sample"):
        options[positions] = int(getattr(theirs, positions, None) or sample or 1024)
    for side in SIDES[name]:
        options |= {
            f"{side}_conv_type": getattr(theirs, f"{side}_conv_type", "dynamic"),
            f"{side}_conv_heads": getattr(theirs, f"{side}_attention_heads"),
            f"{side}_query_heads": 1,
            f"{side}_embed_path": None,  # the embeddings are in the checkpoint
        }
    if name == "pla_lightconv":
        options["decoder_input_dim"] = theirs.decoder_embed_dim
    return {
        field.name: options[field.name]
        if field.name in options
        else _typed(getattr(theirs, field.name, field.default), field)
        for field in fields(MODEL_DATACLASS_REGISTRY[name])
        if not field.name.startswith("_")
    }


def _typed(value: Any, field: Field) -> Any:
    """Return a value in the type of our option: some versions of fairseq write 0 for 0.0, and lists as text."""
    kinds = get_args(field.type) or (field.type,)
    if value is not None and float in kinds:
        return float(value)
    if value is not None and any(get_origin(kind) is list for kind in kinds):
        return [int(number) for number in utils.eval_str_list(value, type=int)]
    return value


def shares_output(theirs: argparse.Namespace) -> bool:
    """Return True if the decoder's output layer is its embedding."""
    return any(getattr(theirs, f"share_{layers}", False) for layers in ("all_embeddings", "decoder_input_output_embed"))


def build(name: str, options: dict[str, Any], parameters: Tensors) -> Any:
    """Build our model with these options, without memory. The size of the vocabulary is that of the embeddings."""
    target = _dictionary(parameters, "decoder")
    source = target if options.get("share_all_embeddings") else _dictionary(parameters, SIDES[name][0])
    task = argparse.Namespace(
        source_dictionary=source, target_dictionary=target, dictionary=target, output_dictionary=target
    )
    embeddings = {"encoder_embed_path": None, "decoder_embed_path": None}  # embeddings are in the checkpoint
    with torch.device("meta"):
        return MODEL_REGISTRY[name].build_model(argparse.Namespace(**options | embeddings), task)


def _dictionary(parameters: Tensors, side: str) -> Dictionary:
    pattern = re.compile(rf"{side}\.embed_tokens\.(embeddings\.\d+\.0\.)?weight")
    rows = sum(tensor.shape[0] for name, tensor in parameters.items() if pattern.fullmatch(name))
    result = Dictionary()
    for number in range(rows - len(result)):
        result.add_symbol(f"w{number}")
    return result


def convert(source: Path) -> tuple[dict[str, Any], str]:
    """Convert the file ``source``. Return our checkpoint, in memory, and its description.

    Raises:
        compat.CheckpointError: the file cannot be converted, is damaged, or contains types that are not allowed.
        OSError: the file does not exist or cannot be read.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(source))
    parameters = state["model"]
    cfg: Any = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    # a component of fairseq's that has no dataclass, such as --optimizer adafactor, has a namespace
    cfg = {part: vars(value) if isinstance(value, argparse.Namespace) else value for part, value in cfg.items()}
    settings = argparse.Namespace(**(cfg.get("model") or {}))
    architecture, name, is_ours = find_model(settings)
    dropped: list[str] = []
    if not is_ours:
        shared = shares_output(settings) and getattr(settings, "adaptive_softmax_cutoff", None) is None
        parameters, dropped = convert_parameters(parameters, shared_output=shared, sides=SIDES[name])
        cfg["model"] = {"_name": name, **convert_options(name, architecture, settings, parameters)}
    model = build(name, cfg["model"], parameters)
    kinds = sorted({re.sub(r"\.\d+\.", ".N.", key) for key in dropped})
    description = (
        f"{name}, {sum(p.numel() for p in model.parameters()):,} parameters\n"
        f"left out, since no model uses them: {len(dropped)} ({', '.join(kinds) or 'none'})"
    )
    try:
        nn.Module.load_state_dict(model, parameters, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            "its parameters are not those of the model that its options describe. Use the file as fairseq wrote it; "
            f"models with changed code cannot be converted. {textwrap.shorten(str(error), 600, placeholder=' ...')}"
        ) from error
    result = {
        "args": None,
        "cfg": cfg,
        "model": parameters,
        "optimizer_history": [
            {key: value for key, value in entry.items() if key != "optimizer"} for entry in state["optimizer_history"]
        ],
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0},
            "written_by": "lightconv_plugin.convert",
        },
        "task_state": state.get("task_state") or {},
    }
    return result, description


def main(arguments: list[str] | None = None) -> None:
    """Run the command. If a file is refused, print the reason and exit with status 1."""
    parser = argparse.ArgumentParser(
        prog="python -m lightconv_plugin.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="IN", type=Path, help="checkpoint of a lightconv or lightconv_lm model")
    parser.add_argument("out", metavar="OUT", type=Path, help="checkpoint to write; the file must not exist")
    options = parser.parse_args(arguments)
    packed = options.out.suffix == SUFFIX
    with refusing(f"convert {options.source}"):
        for path in (options.out, settings_of(options.out)) if packed else (options.out,):
            if os.path.lexists(path):
                raise FileExistsError(f"{path} exists, and is not replaced: give another name or folder for OUT")
        state, description = convert(options.source)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        (write_safetensors if packed else write_state)(state, options.out)
    print(f"{description}\nwrote {options.out}")


if __name__ == "__main__":
    main()
