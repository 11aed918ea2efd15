"""Turn prepared text into fairseq's binary data and dictionaries, with fairseq-preprocess.

example: python -m data_prep.binarise debian_en_de --prepared work/debian/prepared --out work/debian/binarised
"""

import re
from collections.abc import Sequence
from pathlib import Path

from data_prep.cli import add_options, command_parser
from data_prep.common.command import run_command
from data_prep.common.errors import UserError
from data_prep.common.files import copy_file, count_lines
from data_prep.common.outputs import atomic_folder, lock, remove
from data_prep.common.process import python_module, run_logged
from data_prep.common.progress import measured_progress
from data_prep.dataset import SPLITS, Dataset, load_dataset

MOST_UNKNOWN = 3.0  # percentage of the tokens of a test set

SPECIAL_TYPES = 4
"""The entries of every dictionary of fairseq that are not in its file: begin, padding, end, unknown."""

_FINISHED = re.compile(r"\| \[\S+\] (\S+): \d+ sents, ")  # fairseq's line about a file that it has binarised


def binarise(
    dataset: Dataset, *, prepared: Path, out: Path, workers: int, accept: bool = False, dictionaries: Path | None = None
) -> None:
    """Fill the folder ``out`` with the data that fairseq-train reads, and fairseq's log as preprocess.log.

    The folder appears when it is complete.

    Args:
        dataset: the dataset.
        prepared: the folder that data_prep.prepare wrote.
        out: the folder to write.
        workers: the number of processes of fairseq-preprocess.
        accept: accept dictionaries of another size than the dataset expects.
        dictionaries: a folder with dictionaries to use; then only the test set is binarised.

    Raises:
        UserError: fairseq-preprocess failed, a dictionary has another size than the dataset expects, or too many tokens
            of the test set are missing in ``dictionaries``.
    """
    splits = SPLITS if dictionaries is None else ("test",)
    log = out.with_name(f"{out.name}.log")  # beside the folder, so that the log of a failure stays
    texts = [f"{split}.{language}" for split in splits for language in dataset.languages]
    sizes = {name: (prepared / name).stat().st_size for name in texts if (prepared / name).exists()}
    finished = 0  # bytes of the texts that are binarised

    def count(line: str) -> None:
        nonlocal finished
        if match := _FINISHED.search(line):
            finished += sizes.get(match[1], 0)

    with lock(out), atomic_folder(out) as folder:
        print("fairseq-preprocess ...", flush=True)
        with measured_progress("fairseq-preprocess", lambda: (finished, sum(sizes.values())), "B"):
            command = _command(dataset, folder.absolute(), splits, workers, dictionaries)
            # relative paths in the folder of the text: fairseq splits paths at commas
            run_logged(command, log, count, what="fairseq-preprocess", cwd=prepared)
        copy_file(log, folder / "preprocess.log")
        remove(log)
        if dictionaries is None:
            _check_vocab_size(dataset, folder, out.parent, accept=accept)
        else:
            _check_coverage(dataset, folder / "preprocess.log", dictionaries)


def _command(
    dataset: Dataset, folder: Path, splits: Sequence[str], workers: int, dictionaries: Path | None
) -> list[str]:
    command = [*python_module("fairseq_cli.preprocess"), "--destdir", str(folder), "--workers", str(workers)]
    if dataset.target is None:  # without a language, fairseq takes the files' full names and writes train.bin
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
    command += [word for flag, limit in limits.items() if limit is not None for word in (flag, str(limit))]
    if options.joined_dictionary:
        command.append("--joined-dictionary")
    return command


def dictionary(dataset: Dataset, language: str) -> str:
    """Return the file name of a language's dictionary."""
    return "dict.txt" if dataset.target is None else f"dict.{language}.txt"


def vocab_size(file: Path) -> int:
    """Count the entries of a dictionary, including fairseq's special symbols."""
    return count_lines(file) + SPECIAL_TYPES


def _check_coverage(dataset: Dataset, log: Path, dictionaries: Path) -> None:
    """Raise a UserError if the dictionary lacks many tokens: its model was trained with other BPE codes."""
    # fairseq also writes numbers such as 5.77e-05 and 1e+02
    (share,) = re.findall(rf"test\.{dataset.source}: .* (\S+)% replaced", log.read_text(encoding="utf-8"))
    if float(share) > MOST_UNKNOWN:
        raise UserError(
            f"{dictionaries / dictionary(dataset, dataset.source)} lacks {float(share):g}% of the tokens of the test "
            f"set, expected at most {MOST_UNKNOWN}%: the dictionary and the BPE codes belong to different models, or "
            f"the text is not in {dataset.source}"
        )


def _check_vocab_size(dataset: Dataset, folder: Path, root: Path, *, accept: bool) -> None:
    for language, expected in dataset.binarise.expected_vocab_size.items():
        if (got := vocab_size(folder / dictionary(dataset, language))) != expected:
            difference = (
                f"{dictionary(dataset, language)}: got {got:,} entries, expected {expected:,} "
                f"({dataset.file}: binarise.expected_vocab_size)"
            )
            reason = "the text is not that of the recorded run: see counts.json, or, if it is the text that you want,"
            print(dataset.note_on_counts(difference, reason, root, accept=accept), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    add_options(parser)
    parser.add_argument("--prepared", metavar="DIR", type=Path, required=True, help="folder from data_prep.prepare")
    parser.add_argument(
        "--dictionaries", metavar="DIR", type=Path, help="binarise only the test set, with this folder's dict.*.txt"
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
        size = vocab_size(arguments.out / name)
        print(f"{arguments.out}: {name} has {size:,} entries, including fairseq's {SPECIAL_TYPES} special symbols")


if __name__ == "__main__":
    run_command(main)
