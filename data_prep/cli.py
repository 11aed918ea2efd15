"""Options that the three commands have in common."""

import argparse
from pathlib import Path

from data_prep.dataset import INVALID, Dataset
from scripts.common.command import argument_parser, positive
from scripts.common.errors import UserError
from scripts.common.provenance import available_cores


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the module's docstring and takes a dataset and an output folder."""
    parser = argument_parser(description)
    parser.add_argument("dataset", metavar="DATASET", help="a name in data_prep/datasets/, or the path of a YAML file")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write, or to write anew")
    return parser


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """Add the number of processes, which changes nothing about the result."""
    cores = available_cores()
    parser.add_argument(
        "--workers", metavar="N", type=positive, default=cores, help=f"processes (default: one a core, {cores} here)"
    )


def add_prepare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of preparation, wherever it is started from."""
    add_workers_option(parser)
    parser.add_argument("--keep", action="store_true", help="keep what every step made, beside the prepared folder")
    parser.add_argument(
        "--accept-counts",
        action="store_true",
        help="go on where a step leaves another number of lines than the dataset expects; the report says so",
    )


def require_folder(raw: Path | None) -> None:
    """Refuse what is given as --raw if it is not a folder."""
    if raw is not None and not raw.is_dir():
        raise UserError(f"--raw {raw} is not a folder; give the folder that holds the raw files")


def accepting(dataset: Dataset, root: Path) -> str:
    """The way to go on with other numbers than ``dataset`` expects, for messages; its folders are in ``root``."""
    return (
        "go on with --accept-counts (scripts.reproduce has no such option: before it, run "
        f"python -m data_prep {dataset.name} --out {root} --accept-counts)"
    )


def add_invalid_option(parser: argparse.ArgumentParser) -> None:
    """The option that says what is done with the user's text where it is not UTF-8."""
    parser.add_argument(
        "--invalid",
        choices=INVALID,
        help="own text: refuse bytes that are not UTF-8 (the default), replace them by U+FFFD, or drop such pairs",
    )
