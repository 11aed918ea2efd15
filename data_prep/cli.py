"""The options of data_prep's commands."""

import argparse
from pathlib import Path

from data_prep.common.command import argument_parser, positive
from data_prep.common.provenance import available_cores


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the module's docstring and takes a dataset and an output folder."""
    parser = argument_parser(description)
    parser.add_argument("dataset", metavar="DATASET", help="a name in data_prep/datasets/, or the path of a YAML file")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write, or to write anew")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of prepare and binarise, which change nothing about the results."""
    cores = available_cores()
    workers = f"processes (default: one a core, {cores} here)"
    counts = "go on where lines or types are not as many as the dataset expects; the report says so"
    parser.add_argument("--workers", metavar="N", type=positive, default=cores, help=workers)
    parser.add_argument("--accept-counts", action="store_true", help=counts)
