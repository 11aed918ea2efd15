"""What every command that starts one of fairseq's has to arrange for it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError

CHECKOUT = Path(__file__).resolve().parents[2]


def user_dir() -> Path:
    """The plugin, for --user-dir: absolute, since fairseq looks for a relative one in the current folder first."""
    return CHECKOUT / "lightconv_plugin"


def check_binarised(data: Path) -> None:
    """Refuse a folder that is not what data_prep/binarise.py writes, or that fairseq would misread.

    Raises:
        UserError: see above.
    """
    if not data.is_dir() or not any(data.glob("dict.*.txt")) or not any(data.glob("*.idx")):
        raise UserError(
            f"{data} is not a folder of binarised data (dict.*.txt and *.idx); run data_prep/binarise.py first, "
            "or scripts/reproduce.py --to binarise"
        )
    check_path(data)


def check_path(path: Path) -> None:
    """Refuse a path in which fairseq would see several.

    Raises:
        UserError: it holds the character that parts paths.
    """
    if os.pathsep in str(path.resolve()):
        raise UserError(f"fairseq takes the `{os.pathsep}` in {path.resolve()} for two paths; rename the folder")


def device_flags(section: Mapping[str, Any]) -> list[str]:
    """``--cpu`` where there is no CUDA device.

    Raises:
        UserError: the configuration asks for fp16, which fairseq can only do on a CUDA device.
    """
    import torch

    if torch.cuda.is_available():
        return []
    if section.get("fp16") or section.get("memory-efficient-fp16"):
        raise UserError(
            "the configuration asks for fp16 and there is no CUDA device; run it on a machine with a GPU, "
            "or set fp16: false in a copy of the configuration"
        )
    return ["--cpu"]
