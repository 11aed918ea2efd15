"""Fetch, prepare and binarise a dataset for fairseq, and write a report on it.

  DIR/raw        the files as fetched, each checked
  DIR/prepared   text after the dataset's steps, with counts.json (see data_prep.prepare --help)
  DIR/binarised  what fairseq-train reads, with dictionaries
  DIR/report.md  where it comes from, what every step dropped and why, lengths, vocabulary, examples, checksums

The same command again goes on where it was interrupted, at the byte of a download or after the last complete step, and
repeats nothing that is done. Put files that no server has any more, or that need a registration, into a folder, and
give it with --raw: nothing in it is changed.

examples:
  python -m data_prep --list
  python -m data_prep iwslt14_de_en --out work/iwslt14
  python -m data_prep debian_summaries
  python -m data_prep own_text --src my.en --tgt my.de --out work/my
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_prep.cli import add_options
from data_prep.dataset import Dataset, load_dataset, names
from data_prep.report import NAME as REPORT
from data_prep.report import write_report
from data_prep.stages import DATASET, NAMES, data_stages, run_data_stages
from data_prep.steps.plan import plan
from scripts.common import CHECKOUT
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.outputs import check_writable, in_the_making, lock, scratch_folder
from scripts.pipeline.pipeline import Pipeline

STAGES = (*NAMES, "report")


def run_stages(dataset: Dataset, arguments: argparse.Namespace, raw: Path | None) -> None:
    """Run what is not done yet, up to ``arguments.last``."""
    accept = ["--accept-counts"] if arguments.accept_counts else []
    workers = ["--workers", str(arguments.workers)]
    stages = data_stages(
        dataset,
        arguments.out,
        raw=raw,
        fetching=["--invalid", arguments.invalid] if arguments.invalid else [],
        preparing=[*workers, *accept, *(["--keep"] if arguments.keep else [])],
        binarising=[*workers, *accept],
    )
    pipeline = Pipeline({stage.name: stage for stage in stages})
    keys = NAMES[: STAGES.index(arguments.last) + 1]
    pipeline.check_places(keys)
    run_data_stages(pipeline, arguments.out, keys)
    if arguments.last == "report":
        with lock(arguments.out / DATASET):
            print(f"== report: {write_report(dataset, arguments.out)}", flush=True)


def own_sides(dataset: Dataset, source: Path | None, target: Path | None) -> dict[str, Path]:
    """The user's files by language; none where they give none."""
    if source is None:
        if target is not None:
            raise UserError(f"--tgt {target} without --src; give the other side of your text with --src FILE")
        return {}
    files = {dataset.source: source} | ({dataset.target: target} if dataset.target and target else {})
    if dataset.kind != "text":
        raise UserError(
            f"--src and --tgt are for your own text in {' and '.join(dataset.languages)}; {dataset.name} is of kind "
            f"{dataset.kind}: give own_text, or a copy of data_prep/datasets/own_text.yaml"
        )
    if (target is None) != (dataset.target is None):
        wanted = "--src alone" if dataset.target is None else "--src FILE and --tgt FILE, a side each"
        raise UserError(f"{dataset.name} is text in {' and '.join(dataset.languages)}; give {wanted}")
    for path in files.values():
        if not path.is_file():
            raise UserError(f"cannot read {path}: not a file; give a text file with one sentence a line")
    return files


def list_datasets() -> str:
    """Each dataset's name, languages and what it says about itself."""
    entries = []
    for name in names():
        dataset = load_dataset(name)
        size = sum(file.bytes or 0 for file in dataset.files.values())
        fetched = f", {size / 1e9:.1f} GB and more to fetch" if size > 1e8 else ""
        entries.append(f"{name}  ({' to '.join(dataset.languages)}{fetched})\n    {' '.join(dataset.about.split())}")
    return "\n".join(entries)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="a name that --list shows, or a YAML file's path")
    parser.add_argument("--list", action="store_true", help="show the datasets there are, and end")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for all that is made (default: work/DATASET)")
    parser.add_argument("--raw", metavar="DIR", type=Path, help="folder of files fetched by hand, or of own text")
    parser.add_argument("--src", metavar="FILE", type=Path, help="own text: the source side, one sentence a line")
    parser.add_argument("--tgt", metavar="FILE", type=Path, help="own text: the target side")
    parser.add_argument("--to", dest="last", metavar="STAGE", default="report", help=f"last stage: {', '.join(STAGES)}")
    add_options(parser, "--invalid", "--workers", "--keep", "--accept-counts")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(list_datasets())
        return
    if arguments.dataset is None:
        parser.error("DATASET is needed; --list shows the datasets")
    if arguments.last not in STAGES:
        raise UserError(f"--to {arguments.last}: unknown stage; the stages are {', '.join(STAGES)}")
    if arguments.raw is not None and arguments.src is not None:
        raise UserError("--raw and --src both say where the text lies; give one of them")
    dataset = load_dataset(arguments.dataset, invalid=arguments.invalid)
    sides = own_sides(dataset, arguments.src, arguments.tgt)
    if arguments.out is None:
        arguments.out = CHECKOUT / "work" / dataset.name
    plan(dataset, arguments.out)  # every mistake in the YAML now, not after an hour of fetching
    check_writable(arguments.out / REPORT)
    if not sides:
        run_stages(dataset, arguments, arguments.raw)
        return
    given = in_the_making(arguments.out / "given")  # where they have the names that ``kind: text`` looks for
    with lock(given), scratch_folder(given):
        for language, path in sides.items():
            (given / f"train.{language}").symlink_to(path.resolve())
        run_stages(dataset, arguments, given)


if __name__ == "__main__":
    run_command(main)
