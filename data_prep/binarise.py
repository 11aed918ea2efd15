"""Turn prepared text into fairseq's binary data and dictionaries, with fairseq-preprocess.

example: python -m data_prep.binarise debian_en_de --prepared work/debian/prepared --out work/debian/binarised
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from data_prep.cli import add_options, command_parser
from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.files import copy_file, count_lines
from data_prep.common.outputs import atomic_folder, lock, remove
from data_prep.common.process import python_module, run_logged
from data_prep.common.terminal import clock, shown
from data_prep.dataset import SPLITS, Dataset, load_dataset

MOST_UNKNOWN = 3.0  # percent of the units of a test set

SPECIAL_TYPES = 4
"""The types that fairseq has in every dictionary and not in its file: begin, padding, end, unknown."""


def binarise(
    dataset: Dataset, *, prepared: Path, out: Path, workers: int, accept: bool = False, dictionaries: Path | None = None
) -> None:
    """Fill ``out``, all or nothing, with what fairseq-train reads; fairseq's log is in preprocess.log there.

    ``dictionaries``: a folder of them; then the test set alone is binarised.

    Raises:
        UserError: fairseq-preprocess failed, a dictionary has not the size that the dataset expects, or one that was
            given does not know the units of the test set.
    """
    splits = SPLITS if dictionaries is None else ("test",)
    log = out.with_name(f"{out.name}.log")  # beside the folder, which is not there while this fails
    with lock(out), atomic_folder(out) as folder:
        start = time.monotonic()
        print("fairseq-preprocess ...", flush=True)
        # it says nothing itself until a split is done
        with shown(lambda: f"fairseq-preprocess: {clock(time.monotonic() - start)}"):
            command = _command(dataset, folder.absolute(), splits, workers, dictionaries)
            # in that folder, since fairseq parts paths at commas
            run_logged(command, log, lambda line: None, what="fairseq-preprocess", cwd=prepared)
        copy_file(log, folder / "preprocess.log")
        remove(log)
        if dictionaries is None:
            _check_vocab_size(dataset, folder, out.parent, accept=accept)
        else:
            _check_known(dataset, folder / "preprocess.log", dictionaries)


def _command(
    dataset: Dataset, folder: Path, splits: Sequence[str], workers: int, dictionaries: Path | None
) -> list[str]:
    command = [*python_module("fairseq_cli.preprocess"), "--destdir", str(folder), "--workers", str(workers)]
    if dataset.target is None:  # without a language fairseq takes the files by their names and writes train.bin
        command.append("--only-source")
        command += [f"--{split}pref={split}.{dataset.source}" for split in splits]
    else:
        command += ["--source-lang", dataset.source, "--target-lang", dataset.target]
        command += [f"--{split}pref={split}" for split in splits]
    if dictionaries is not None:
        for flag, language in zip(("--srcdict", "--tgtdict"), dataset.languages, strict=False):
            command += [flag, str((dictionaries / dictionary(dataset, language)).absolute())]
        return command
    options = dataset.binarise
    limits = {
        **{"--thresholdsrc": options.threshold_source, "--nwordssrc": options.nwords_source},
        **{"--thresholdtgt": options.threshold_target, "--nwordstgt": options.nwords_target},
    }
    command += [each for flag, limit in limits.items() if limit is not None for each in (flag, str(limit))]
    if options.joined_dictionary:
        command.append("--joined-dictionary")
    return command


def dictionary(dataset: Dataset, language: str) -> str:
    """The file name of a language's dictionary."""
    return "dict.txt" if dataset.target is None else f"dict.{language}.txt"


def vocab_size(file: Path) -> int:
    """The types in a dictionary, fairseq's special ones included."""
    return count_lines(file) + SPECIAL_TYPES


def _check_known(dataset: Dataset, log: Path, dictionaries: Path) -> None:
    """Refuse a dictionary that does not know the units of the source: it is not of the codes that cut them."""
    # fairseq writes 5.77e-05 and 1e+02, too
    (share,) = re.findall(rf"test\.{dataset.source}: .* (\S+)% replaced", log.read_text(encoding="utf-8"))
    if float(share) > MOST_UNKNOWN:
        raise UserError(
            f"{dictionaries / dictionary(dataset, dataset.source)} does not know {float(share):g}% of the units of the "
            f"test set, expected at most {MOST_UNKNOWN}%: it is not of the model whose BPE codes cut them, or the text "
            f"is not in {dataset.source}"
        )


def _check_vocab_size(dataset: Dataset, folder: Path, root: Path, *, accept: bool) -> None:
    for language, expected in dataset.binarise.expected_vocab_size.items():
        if (got := vocab_size(folder / dictionary(dataset, language))) != expected:
            found = f"{dictionary(dataset, language)}: got {got:,} types, expected {expected:,}"
            why = "the text is not that of the recorded run: see counts.json, or, if it is what you mean to use,"
            where = f"({dataset.file}: binarise.expected_vocab_size)"
            print(dataset.other_counts(f"{found} {where}", why, root, accept=accept), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    add_options(parser)
    parser.add_argument("--prepared", metavar="DIR", type=Path, required=True, help="what data_prep.prepare wrote")
    parser.add_argument(
        "--dictionaries", metavar="DIR", type=Path, help="binarise the test set alone, with dict.*.txt of this folder"
    )
    arguments = parser.parse_args(argv)
    dataset = load_dataset(arguments.dataset)
    binarise(
        dataset,
        prepared=arguments.prepared,
        out=arguments.out,
        workers=arguments.workers,
        accept=arguments.accept_counts,
        dictionaries=arguments.dictionaries,
    )
    for language in dataset.languages:
        name = dictionary(dataset, language)
        types = vocab_size(arguments.out / name)
        print(f"{arguments.out}: {name} has {types:,} types, with fairseq's {SPECIAL_TYPES} special ones")


if __name__ == "__main__":
    run_command(main)
