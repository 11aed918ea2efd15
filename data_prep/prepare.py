"""Run the steps that a dataset's YAML lists on its raw text, before it is binarised.

The output folder has
  {train,valid,test}.<language>  the text after the steps: most often tokenised and segmented by BPE
  raw/{valid,test}.<language>    the same lines untokenised: references for scores
  codes                          the BPE merges of subword-nmt; codes.<language> if each language has its own; for
                                 SentencePiece, sentencepiece.model
  counts.json                    lines after every step, dropped lines by reason, checksums

An interrupted run resumes after its last complete step, in the folder .NAME.work.lightconv beside --out.

example: python -m data_prep.prepare debian_en_de --raw work/debian/raw --out work/debian/prepared
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.cli import add_options, command_parser
from data_prep.common.command import run_command
from data_prep.common.files import digest
from data_prep.common.outputs import atomic_folder, check_writable, lock, remove, work_folder
from data_prep.common.pipeline import fingerprint
from data_prep.common.provenance import package_versions
from data_prep.dataset import Dataset, load_dataset
from data_prep.sources import kind_of
from data_prep.steps.corpus import Pool
from data_prep.steps.engine import Engine

_PACKAGE = Path(__file__).parent
_PACKAGES = ("sacremoses", "subword-nmt", "sentencepiece", "jieba")  # what the text depends on


def prepare(dataset: Dataset, *, raw: Path, out: Path, workers: int, accept_counts: bool = False) -> dict[str, Any]:
    """Run a dataset's steps on the text in ``raw``; the folder ``out`` appears when it is complete.

    Args:
        dataset: the dataset.
        raw: the folder that data_prep.download wrote.
        out: the folder to write.
        workers: the number of processes.
        accept_counts: accept numbers of lines that differ from those in the dataset's YAML.

    Returns:
        the content of counts.json.
    """
    check_writable(out)
    # sizes and times instead of checksums, which were tested after the download: reading gigabytes at every start would
    # take minutes
    files = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(raw.glob("[!.]*"))}
    # Python's version without its last number: bugfix releases make the same text
    used = {"python": ".".join(map(str, sys.version_info[:2])), **package_versions(_PACKAGES)}
    with lock(out), Pool(workers) as pool:
        # everything that the text depends on, so that a run never resumes with results of other code
        made_from = {"dataset": fingerprint(dataset.facts("binarise")), "raw": files, "versions": used, "code": _code()}
        work = work_folder(out, made_from)
        engine = Engine(dataset, work=work, pool=pool, accept_counts=accept_counts)
        report: dict[str, Any] = {}
        engine.run(kind_of(dataset).read(dataset, raw, report), report)
        with atomic_folder(out) as folder:
            counts = engine.finish(folder, used)
        remove(work)
    return counts


def _code() -> str:
    """Hash the code that makes the text."""
    return digest(
        sorted(path for name in ("sources", "steps", "text") for path in (_PACKAGE / name).glob("*.[pt][yx]*"))
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    add_options(parser)
    parser.add_argument("--raw", metavar="DIR", type=Path, required=True, help="folder from data_prep.download")
    parser.add_argument(
        "--codes",
        metavar=("SOURCE", "TARGET"),
        nargs=2,
        type=Path,
        help="prepare only the test set, with these files of BPE merges instead of learning merges",
    )
    arguments = parser.parse_args(argv)
    dataset = load_dataset(arguments.dataset)
    if arguments.codes:
        dataset = dataset.only_test(arguments.codes)
    prepare(
        dataset,
        raw=arguments.raw,
        out=arguments.out,
        workers=arguments.workers,
        accept_counts=arguments.accept_counts,
    )


if __name__ == "__main__":
    run_command(main)
