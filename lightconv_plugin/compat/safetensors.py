"""Models as ``model.safetensors`` with ``config.json`` beside it: reading these formats runs no code.

fairseq reads such a file wherever it reads a checkpoint: ``--path``, ``--finetune-from-model``, ``from_pretrained``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.ops.files import whole_file

SUFFIX = ".safetensors"


def settings_of(path: Path) -> Path:
    """Return the path of the settings that belong to a file of parameters."""
    return path.with_name("config.json")


def write_safetensors(state: dict[str, Any], path: Path) -> None:
    """Write the parameters of a checkpoint that ``convert`` made to ``path``, and its settings beside it.

    The format cannot store a parameter under two names. The second name of a shared parameter is in the settings.

    Raises:
        OSError: a file cannot be written. Each of the two files is complete or unchanged.
    """
    from safetensors.torch import save

    names: dict[Any, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state["model"].items():
        memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if (first := names.setdefault(memory, name)) != name:
            tied[name] = first
    tensors = {name: state["model"][name].contiguous().clone() for name in names.values()}
    settings = {part: state[part] for part in state if part != "model"} | {"tied": tied}
    with whole_file(path) as file:
        file.write(save(tensors, metadata={"format": "pt"}))
    with whole_file(settings_of(path)) as file:
        file.write(f"{json.dumps(settings, indent=1, sort_keys=True)}\n".encode())


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the checkpoint that ``write_safetensors`` wrote.

    Raises:
        OSError, KeyError, ValueError, safetensors.SafetensorError: a file is missing, damaged or of another kind.
    """
    from safetensors.torch import load_file

    settings, model = json.loads(settings_of(path).read_text(encoding="utf-8")), load_file(path)
    tied = {name: model[first] for name, first in settings.pop("tied").items()}
    return {**settings, "model": model | tied}


def load_safetensors() -> None:
    """Let fairseq read a checkpoint in the safetensors format if its name ends in ``.safetensors``."""
    from fairseq import checkpoint_utils
    from omegaconf import OmegaConf

    @shim(checkpoint_utils, "load_checkpoint_to_cpu")
    def load_by_suffix(
        original: Original, path: str, arg_overrides: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        if not str(path).endswith(SUFFIX):
            return original(path, arg_overrides, *args, **kwargs)
        state = read_safetensors(Path(path))
        state["cfg"] = OmegaConf.create(state["cfg"])
        OmegaConf.set_struct(state["cfg"], True)
        if arg_overrides:
            checkpoint_utils.overwrite_args_by_name(state["cfg"], arg_overrides)
        return state
