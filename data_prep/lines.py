"""Lines from standard input through a dataset's steps, as the source of its test set goes: a line out for each line in.

What a model that was trained on the dataset is asked (scripts.translate). Steps that drop pairs, split or count have
no part in it. Each line is answered as it comes.

example: echo "A small tool." | python -m data_prep.lines debian_en_de --language en --codes work/debian/prepared/codes
"""

import sys
from collections.abc import Callable
from pathlib import Path

from data_prep.dataset import Dataset, Step, load_dataset
from data_prep.steps.plan import plan
from data_prep.steps.registry import APPLY_BPE, APPLY_SENTENCEPIECE, INNER, LINE, STEPS
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError


def line_steps(dataset: Dataset, language: str, codes: Path) -> Callable[[str], str]:
    """The steps that a line of the test set goes through, as one function.

    Args:
        dataset: whose steps.
        language: of the line.
        codes: the BPE merges or the SentencePiece model of that language.
    """
    if language not in dataset.languages:
        raise UserError(f"{dataset.name} has no language {language!r}; expected {' or '.join(dataset.languages)}")
    steps = [step for each in plan(dataset, codes.parent) if not each.corpus for step in each.steps]
    functions = [_function(step, language, codes) for step in steps if _takes_part(step, language)]
    if not functions:
        raise UserError(
            f"{dataset.name} does nothing to lines of {language}: its text comes prepared. Give a dataset that makes "
            "the same text from the original (wmt16_en_de for wmt16_en_de_google)"
        )

    def apply(line: str) -> str:
        for function in functions:
            line = function(line)
        return line

    return apply


def _takes_part(step: Step, language: str) -> bool:
    on_lines = (STEPS | INNER)[step.name].kind == LINE
    return on_lines and language in (step.languages or (language,)) and "test" in (step.splits or ("test",))


def _function(step: Step, language: str, codes: Path) -> Callable[[str], str]:
    learnt = {"codes": str(codes)} if step.name in (APPLY_BPE, APPLY_SENTENCEPIECE) else {}
    return (STEPS | INNER)[step.name].build(language, step.parameters | learnt)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("dataset", metavar="DATASET", help="a name in data_prep/datasets/, or the path of a YAML file")
    parser.add_argument("--language", required=True, help="of the lines, as the dataset names it")
    parser.add_argument("--codes", metavar="FILE", type=Path, required=True, help="BPE merges or SentencePiece model")
    arguments = parser.parse_args()
    apply = line_steps(load_dataset(arguments.dataset), arguments.language, arguments.codes)
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.rstrip(b"\n").decode()
        except UnicodeDecodeError as error:
            raise UserError(f"line {number}: byte 0x{line[error.start]:02x} is not UTF-8; convert the text") from error
        sys.stdout.buffer.write(apply(text).replace("\r", " ").encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    run_command(main)
