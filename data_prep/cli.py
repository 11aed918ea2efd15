"""Options that the commands of data_prep share."""

import argparse
from pathlib import Path

from data_prep.common.command import argument_parser, positive
from data_prep.common.provenance import available_cores


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser for a command that takes a dataset and an output folder; ``description`` is the help's text."""
    parser = argument_parser(description)
    parser.add_argument("dataset", metavar="DATASET", help="a name in data_prep/datasets/, or the path of a YAML file")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write or replace")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of prepare and binarise that do not change the results."""
    cores = available_cores()
    workers = f"number of processes (default: one per core, {cores} here)"
    counts = "accept numbers of lines or vocabulary entries that differ from the expected ones; the report lists them"
    parser.add_argument("--workers", metavar="N", type=positive, default=cores, help=workers)
    parser.add_argument("--accept-counts", action="store_true", help=counts)
