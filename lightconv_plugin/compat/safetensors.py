"""Models as `model.safetensors` with `config.json` beside it: formats that run nothing when they are read.

fairseq reads one wherever it reads a checkpoint of its own: `--path`, `--finetune-from-model`, `from_pretrained`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lightconv_plugin.compat.shim import Original, shim
from lightconv_plugin.ops.files import whole_file

SUFFIX = ".safetensors"


def settings_of(path: Path) -> Path:
    """The file of settings that belongs to a file of parameters."""
    return path.with_name("config.json")


def write_safetensors(state: dict[str, Any], path: Path) -> None:
    """Write the parameters and the settings of a checkpoint, as `convert` leaves it, to ``path`` and beside it.

    The format has no parameter under two names: the second of a shared one stands as a reference in the settings. It
    has no checksum either: that stands there too, and says that the two files belong together.

    Raises:
        OSError: they cannot be written; each of the two files is whole, or as it was.
    """
    from safetensors.torch import save

    own: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, tensor in state["model"].items():
        # an empty tensor's address says nothing
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else name
        if (known := first.setdefault(place, name)) != name:
            tied[name] = known
        else:
            whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
            own[name] = tensor if whole else tensor.clone().contiguous()
    settings = {**state["extra_state"], **{name: state[name] for name in ("cfg", "optimizer_history", "task_state")}}
    parameters = save(own, metadata={"format": "pt"})
    settings |= {"tied": tied, "sha256": hashlib.sha256(parameters).hexdigest()}
    text = json.dumps(settings, indent=1, sort_keys=True)
    with whole_file(path) as file:
        file.write(parameters)
    with whole_file(settings_of(path)) as file:
        file.write(f"{text}\n".encode())


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return what ``write_safetensors`` was given.

    Raises:
        ValueError: the settings are not those that it writes, or are of other parameters.
        OSError, safetensors.SafetensorError: a file is missing or damaged.
    """
    from safetensors.torch import load

    settings = json.loads(settings_of(path).read_text(encoding="utf-8"))
    parts = ("cfg", "optimizer_history", "task_state", "tied", "train_iterator", "sha256")
    if not isinstance(settings, dict) or (missing := [part for part in parts if part not in settings]):
        lacking = f"lacks {', '.join(missing)}" if isinstance(settings, dict) else "is no table"
        raise ValueError(f"{settings_of(path)} {lacking}; expected the file that lightconv_plugin.convert wrote")
    state = {name: settings.pop(name) for name in ("cfg", "optimizer_history", "task_state")}
    tied = settings.pop("tied")
    parameters = path.read_bytes()
    if hashlib.sha256(parameters).hexdigest() != settings.pop("sha256"):
        raise ValueError(f"it does not match the checksum in {settings_of(path)}")
    model = load(parameters)
    return {
        **state,
        "args": None,
        "model": model | {name: model[known] for name, known in tied.items()},
        "extra_state": settings,
    }


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
