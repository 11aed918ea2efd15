"""Things that every command arranges which starts one of fairseq's."""

import os
import sys
from pathlib import Path

from scripts.common import CHECKOUT
from scripts.common.errors import UserError
from scripts.common.process import child, python_module
from scripts.pipeline.config import Config


def user_dir() -> Path:
    """The plugin, for --user-dir: absolute, since fairseq looks for a relative one in the current folder first."""
    return CHECKOUT / "lightconv_plugin"


def check_binarised(data: Path) -> None:
    """Refuse a folder that is not what data_prep.binarise writes, or that fairseq would misread."""
    if not data.is_dir() or not any(data.glob("dict*.txt")) or not any(data.glob("*.idx")):
        raise UserError(
            f"{data} is not a folder of binarised data (dict*.txt and *.idx); run python -m data_prep.binarise first, "
            "or python -m scripts.reproduce --to binarise"
        )
    check_path(data)


def check_path(path: Path) -> None:
    """Refuse a path in which fairseq would see several, or that no record can name."""
    if os.pathsep in str(path.resolve()):
        raise UserError(f"fairseq takes the `{os.pathsep}` in {path.resolve()} for two paths; rename the folder")
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the path {str(path.resolve())!r} is not text in UTF-8; rename the folder") from error


def check_first(config: Config, *flags: str) -> None:
    """Run python -m scripts.check on a configuration, in a process of its own: fairseq is heavy.

    Raises:
        SystemExit: it refuses; it has said why itself.
    """
    with child([*python_module("scripts.check"), *config.arguments, *flags]) as process:
        if process.wait() != 0:
            sys.exit(1)
