"""The options of data_prep's commands."""

import argparse
from pathlib import Path
from typing import Any

from data_prep.dataset import INVALID
from scripts.common.command import argument_parser, positive
from scripts.common.errors import UserError
from scripts.common.provenance import available_cores


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the module's docstring and takes a dataset and an output folder."""
    parser = argument_parser(description)
    parser.add_argument("dataset", metavar="DATASET", help="a name in data_prep/datasets/, or the path of a YAML file")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write, or to write anew")
    return parser


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add those of the options below that a command takes."""
    cores, flag = available_cores(), {"action": "store_true"}
    invalid = "own text: refuse bytes that are not UTF-8 (the default), replace them by U+FFFD, or drop such pairs"
    counts = "go on where a step leaves another number of lines than the dataset expects; the report says so"
    workers = f"processes (default: one a core, {cores} here)"
    options: dict[str, dict[str, Any]] = {
        "--invalid": {"choices": INVALID, "help": invalid},
        "--workers": {"metavar": "N", "type": positive, "default": cores, "help": workers},
        "--keep": {**flag, "help": "keep what every step made, beside the prepared folder"},
        "--accept-counts": {**flag, "help": counts},
    }
    for name in names:
        parser.add_argument(name, **options[name])


def require_folder(raw: Path | None) -> None:
    """Refuse what is given as --raw if it is not a folder."""
    if raw is not None and not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")
