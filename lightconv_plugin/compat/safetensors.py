"""Models as `model.safetensors` with `config.json` beside it: formats that run nothing when they are read.

fairseq reads one wherever it reads a checkpoint of its own: `--path`, `--finetune-from-model`, `from_pretrained`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.ops.files import whole_file

SUFFIX = ".safetensors"


def settings_of(path: Path) -> Path:
    """The file of settings that belongs to a file of parameters."""
    return path.with_name("config.json")


def write_safetensors(state: dict[str, Any], path: Path) -> None:
    """Write the parameters and the settings of a checkpoint, as `convert` leaves it, to ``path`` and beside it.

    The format has no parameter under two names: the second of a shared one stands as a reference in the settings.

    Raises:
        OSError: they cannot be written; each of the two files is whole, or as it was.
    """
    from safetensors.torch import save

    names: dict[Any, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state["model"].items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if (first := names.setdefault(place, name)) != name:
            tied[name] = first
    own = {name: state["model"][name].contiguous().clone() for name in names.values()}
    settings = {part: state[part] for part in state if part != "model"} | {"tied": tied}
    with whole_file(path) as file:
        file.write(save(own, metadata={"format": "pt"}))
    with whole_file(settings_of(path)) as file:
        file.write(f"{json.dumps(settings, indent=1, sort_keys=True)}\n".encode())


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return what ``write_safetensors`` was given.

    Raises:
        OSError, KeyError, ValueError, safetensors.SafetensorError: a file is missing, damaged or another's.
    """
    from safetensors.torch import load_file

    settings, model = json.loads(settings_of(path).read_text(encoding="utf-8")), load_file(path)
    tied = {name: model[first] for name, first in settings.pop("tied").items()}
    return {**settings, "model": model | tied}


def load_safetensors() -> None:
    """All versions: a checkpoint whose name ends in `.safetensors` is read as one."""
    from fairseq import checkpoint_utils
    from omegaconf import OmegaConf

    @shim(checkpoint_utils, "load_checkpoint_to_cpu")
    def by_suffix(
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
