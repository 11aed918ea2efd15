"""Fetch a dataset's raw text into a folder, with a manifest of the files.

example: python -m data_prep.download debian_en_de --out work/debian/raw
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from data_prep.cli import command_parser
from data_prep.common.command import run_command
from data_prep.common.files import digest, write_json
from data_prep.common.outputs import atomic_folder, lock
from data_prep.dataset import Dataset, load_dataset
from data_prep.sources import kind_of


def download(dataset: Dataset, *, raw: Path | None, out: Path) -> dict[str, Any]:
    """Fill the folder ``out`` with the raw files and manifest.json; returns the manifest.

    ``raw`` is a folder with files that the user fetched, if any.
    """
    kind = kind_of(dataset)
    # a kind that resumes adds files to the folder; for the others it appears when it is complete
    with lock(out), nullcontext(out) if kind.resumes else atomic_folder(out) as folder:
        notes = kind.fetch(dataset, raw, folder)
        if "files" not in notes:
            paths = sorted(folder.glob("[!.]*"))
            notes["files"] = {path.name: {"bytes": path.stat().st_size, "sha256": digest([path])} for path in paths}
        manifest = {"dataset": dataset.name, "kind": dataset.kind, **notes}
        write_json(folder / "manifest.json", manifest)
    return manifest


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--raw", metavar="DIR", type=Path, help="folder with files fetched by hand, or with your text")
    parser.add_argument("--test-only", action="store_true", help="fetch only the files with the test set")
    arguments = parser.parse_args(argv)
    dataset = load_dataset(arguments.dataset)
    if arguments.test_only:
        dataset = dataset.only_test()
    download(dataset, raw=arguments.raw, out=arguments.out)


if __name__ == "__main__":
    run_command(main)
