"""Arguments and checks of the commands that run a command of fairseq."""

import argparse
from pathlib import Path
from typing import Any

from data_prep.common import CHECKOUT
from data_prep.common.errors import UserError
from data_prep.common.files import check_path, read_json
from scripts.config import SUBSETS, config_parser


def user_dir() -> Path:
    """Return the path for --user-dir. It is absolute: fairseq looks for a relative one in the current folder first."""
    return CHECKOUT / "lightconv_plugin"


def check_binarised(data: Path) -> None:
    """Refuse a folder that data_prep.binarise did not write, or whose path fairseq would misread."""
    if not data.is_dir() or not any(data.glob("dict*.txt")) or not any(data.glob("*.idx")):
        raise UserError(
            f"{data} is not a folder of binarised data (dict*.txt and *.idx); run python -m data_prep.binarise first, "
            "or python -m scripts.reproduce --to binarise"
        )
    check_path(data)


def model_parser(doc: str | None, *, out: str) -> argparse.ArgumentParser:
    """Return a parser with the options of the commands that run a model; ``out`` is the help of --out."""
    parser = config_parser(doc, data=True, out=out)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE", help="a checkpoint, averaged or not")
    parser.add_argument("--subset", choices=SUBSETS, default="test", help="the split (default: test)")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="tune.json, whose settings override the CONFIG's")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the training, recorded with the result")
    return parser


def chosen_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check that data and model exist; return the settings that tuning chose."""
    check_binarised(arguments.data)
    if not arguments.model.is_file():
        raise UserError(f"no model {arguments.model}; expected a file that scripts.train or scripts.average wrote")
    check_path(arguments.model)
    return dict(read_json(arguments.tuned)["chosen"]) if arguments.tuned else {}


def add_prepared(parser: argparse.ArgumentParser) -> None:
    """Add --prepared, the folder of prepared text, in which words outside the dictionary are not <unk>."""
    parser.add_argument(
        "--prepared",
        type=Path,
        metavar="DIR",
        help="the folder that data_prep.prepare wrote, with sources and references (default: as fairseq prints them, "
        "with <unk> for subwords outside the dictionary)",
    )
