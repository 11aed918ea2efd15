"""Turn prepared text into fairseq's binary data and dictionaries, with fairseq-preprocess.

example: python data_prep/binarise.py debian_en_de --prepared work/debian/prepared --out work/debian/binarised
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_prep.cli import check_out, command_parser, positive
from data_prep.dataset import Dataset, load_dataset
from data_prep.text.split import SPLITS
from scripts.common.errors import UserError, run_command
from scripts.common.files import atomic_folder, read_lines

_LOG = "preprocess.log"


def binarise(dataset: Dataset, *, prepared: Path, out: Path, workers: int) -> None:
    """Fill ``out``, all or nothing, with what fairseq-train reads; fairseq's log is in preprocess.log there."""
    check_out(out, mark=_LOG)
    _check_input(dataset, prepared)
    options = dataset.binarise
    with atomic_folder(out) as folder:
        command = [sys.executable, "-m", "fairseq_cli.preprocess"]
        command += ["--source-lang", dataset.source, "--target-lang", dataset.target]
        for part in SPLITS:
            command += [f"--{part}pref", str(prepared / part)]
        command += ["--thresholdsrc", str(options.threshold_source), "--thresholdtgt", str(options.threshold_target)]
        if options.joined_dictionary:
            command.append("--joined-dictionary")
        command += ["--destdir", str(folder), "--workers", str(workers)]
        print("fairseq-preprocess ...", flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode != 0:
            tail = "\n".join(f"  {line}" for line in done.stdout.strip().splitlines()[-15:])
            raise UserError(f"fairseq-preprocess failed with status {done.returncode}; its output ended with:\n{tail}")
        (folder / _LOG).write_text(done.stdout, encoding="utf-8")
        for part in SPLITS:
            for language in dataset.languages:
                name = f"{part}.{dataset.source}-{dataset.target}.{language}.bin"
                if not (folder / name).is_file():
                    raise UserError(f"fairseq-preprocess ended well but wrote no {name}; its output:\n{done.stdout}")


def _check_input(dataset: Dataset, prepared: Path) -> None:
    """fairseq-preprocess takes unequal and empty files without a word; training then fails much later."""
    for part in SPLITS:
        counts = {language: len(read_lines(prepared / f"{part}.{language}")) for language in dataset.languages}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            got = ", ".join(f"{part}.{language} {count} lines" for language, count in counts.items())
            raise UserError(f"{prepared}: got {got}; expected equal numbers above 0; run data_prep/prepare.py again")


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--prepared", metavar="DIR", type=Path, required=True, help="folder that prepare.py wrote")
    parser.add_argument("--workers", metavar="N", type=positive, default=1, help="fairseq's processes (default: 1)")
    arguments = parser.parse_args()
    dataset = load_dataset(arguments.dataset)
    binarise(dataset, prepared=arguments.prepared, out=arguments.out, workers=arguments.workers)
    for language in dataset.languages:
        types = len(read_lines(arguments.out / f"dict.{language}.txt"))
        print(f"{arguments.out}: dict.{language}.txt has {types:,} entries (and fairseq's 4 special ones)")


if __name__ == "__main__":
    run_command(main)
