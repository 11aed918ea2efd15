"""Arguments of the commands that run a trained model over a subset of binarised data."""

import argparse
from pathlib import Path
from typing import Any

from scripts.common.errors import UserError
from scripts.common.files import read_json
from scripts.fairseq_io.inputs import check_binarised, check_path
from scripts.pipeline.config import config_parser
from scripts.pipeline.schema import SUBSETS


def model_parser(doc: str | None, *, out: str) -> argparse.ArgumentParser:
    """Their options; ``out`` says what --out is for."""
    parser = config_parser(doc, data=True, out=out)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--subset", choices=SUBSETS, default="test", help="(default: test)")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="tune.json: what it chose goes before the CONFIG's")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of the training, to be noted with the result")
    return parser


def chosen_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what tuning chose, once data and model are known to be there."""
    check_binarised(arguments.data)
    if not arguments.model.is_file():
        raise UserError(f"no model {arguments.model}; expected what scripts.train or scripts.average wrote")
    check_path(arguments.model)
    chosen: dict[str, Any] = read_json(arguments.tuned)["chosen"] if arguments.tuned else {}
    return chosen


def add_prepared(parser: argparse.ArgumentParser) -> None:
    """Add the folder of prepared text, which knows what the dictionary does not."""
    parser.add_argument(
        "--prepared",
        type=Path,
        metavar="DIR",
        help="what data_prep.prepare wrote: sources and references are taken from it (default: as fairseq prints "
        "them, with <unk> for units outside the dictionary)",
    )
