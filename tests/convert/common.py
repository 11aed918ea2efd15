"""Small models of fairseq's own lightconv, saved as its different versions saved them."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor, nn

import lightconv_plugin.register  # noqa: F401  applies the shims

TRAINING = {
    "task": "translation",
    "source_lang": "en",
    "target_lang": "de",
    "data": "nowhere",
    "criterion": "cross_entropy",
    "optimizer": "adam",
    "lr_scheduler": "fixed",
}
TINY: dict[str, Any] = {
    **{
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 4, "layers": 2}.items()
    },
    "encoder_kernel_size_list": [3, 5],
    "decoder_kernel_size_list": [3, 7],
    "dropout": 0.1,
    "max_source_positions": 64,
    "max_target_positions": 64,
}
DYNAMIC: dict[str, Any] = {"encoder_conv_type": "dynamic", "decoder_conv_type": "dynamic", "weight_softmax": True}


def dictionary(types: int) -> Dictionary:
    result = Dictionary()
    for number in range(types - len(result)):
        result.add_symbol(f"w{number}", n=1000 - number)
    return result


def write_dictionaries(folder: Path, *, shared: bool) -> Namespace:
    """Write dict.en.txt and dict.de.txt into ``folder``; return the attributes that a model needs of a task."""
    source = dictionary(20)
    target = source if shared else dictionary(28)
    source.save(str(folder / "dict.en.txt"))
    target.save(str(folder / "dict.de.txt"))
    return Namespace(source_dictionary=source, target_dictionary=target, dictionary=source, output_dictionary=source)


def theirs(dictionaries: Namespace, arch: str = "lightconv_iwslt_de_en", **options: Any) -> tuple[Any, Namespace]:
    """Return a model of fairseq's with random parameters, norms and biases included, and fairseq-train's settings."""
    args = Namespace(**{**TRAINING, "arch": arch, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, dictionaries).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")) or re.search(r"norm\d\.weight", name):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "conv.weight" in name:
                parameter.mul_(3)
            if name.endswith("conv_bias"):  # uninitialised memory, which the model does not use
                parameter.fill_(float("nan"))
    args._name = arch
    return model, args


def early_names(state: dict[str, Tensor], *, shared: bool, ancient: bool = False) -> dict[str, Tensor]:
    """Rename a state's parameters as fairseq named them until 0.12.2, or with ``ancient`` at the beginning of 2019."""
    result = {}
    for key, tensor in state.items():
        if key.endswith("conv_bias"):
            continue
        if key == "decoder.output_projection.weight":
            if not shared:
                result["decoder.embed_out"] = tensor
            continue
        result[re.sub(r"layer_norm([12])\.", lambda m: f"layer_norms.{int(m[1]) - 1}.", key)] = tensor
    if ancient:
        for side in ("encoder", "decoder"):
            result[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        for prefix in {key[: key.index("q_proj")] for key in result if "q_proj" in key}:
            for leaf in ("weight", "bias"):
                parts = [result.pop(f"{prefix}{name}_proj.{leaf}") for name in "qkv"]
                result[f"{prefix}in_proj_{leaf}"] = torch.cat(parts)
    return result


def save(
    path: Path, model: nn.Module | dict[str, Tensor], args: Namespace, *, settings: str = "args", zipped: bool = True
) -> Path:
    """Save a checkpoint with its settings as ``args``, as ``cfg``, or as ``cfg`` with the model's as a ``dict``."""
    state: dict[str, Any] = {
        "args": None,
        "cfg": None,
        "model": model.state_dict() if isinstance(model, nn.Module) else model,
        "optimizer_history": [{"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam"}],
        "extra_state": {"train_iterator": {"epoch": 3, "iterations_in_epoch": 0}, "val_loss": 4.0},
        "last_optimizer_state": {"state": {0: torch.zeros(7)}},
    }
    state["optimizer_history"][0] |= {"lr_scheduler_state": {"best": 4.0}, "num_updates": 12}
    if settings == "args":
        del state["cfg"]
        state["args"] = args
    else:
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from omegaconf import OmegaConf

        cfg: Any = OmegaConf.to_container(convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True)
        state["cfg"] = cfg | {"model": vars(args) if settings == "dict" else args}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return path
