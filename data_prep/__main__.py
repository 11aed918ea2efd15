"""Fetch, prepare and binarise a dataset for fairseq, and write a report on it.

  DIR/raw        the fetched files, each tested
  DIR/prepared   the text after the dataset's steps, with counts.json (see data_prep.prepare --help)
  DIR/binarised  the data that fairseq-train reads, with dictionaries
  DIR/report.md  sources, dropped lines of every step by reason, expected counts, sizes, checksums

Run an interrupted command again: it resumes within a download or after the last complete step, and repeats nothing.
Files that are not on a server any more, or that need a registration, go into a folder of your own, to be named with
--raw; nothing in that folder is changed.

examples:
  python -m data_prep --list
  python -m data_prep iwslt14_de_en --out work/iwslt14
  python -m data_prep debian_summaries
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.cli import add_options
from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.pipeline import Pipeline
from data_prep.dataset import load_dataset, names
from data_prep.report import write_report
from data_prep.stages import NAMES, data_stages, run_data_stages
from data_prep.steps.plan import plan

STAGES = (*NAMES, "report")


def list_datasets() -> str:
    """Return the text of --list: each dataset's name, languages and description."""
    entries = []
    for name in names():
        dataset = load_dataset(name)
        entries.append(f"{name}  ({' to '.join(dataset.languages)})\n    {' '.join(dataset.about.split())}")
    return "\n".join(entries)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="a name that --list shows, or a YAML file's path")
    parser.add_argument("--list", action="store_true", help="print the available datasets and exit")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for all results (default: work/DATASET)")
    parser.add_argument("--raw", metavar="DIR", type=Path, help="folder with files fetched by hand, or with your text")
    parser.add_argument("--to", dest="last", choices=STAGES, default="report", help="last stage (default: report)")
    add_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(list_datasets())
        return
    if arguments.dataset is None:
        parser.error("DATASET is needed; --list shows the datasets")
    dataset = load_dataset(arguments.dataset)
    out = arguments.out or CHECKOUT / "work" / dataset.name
    plan(dataset, out)  # raises errors about the YAML now instead of after an hour of downloads
    options = ["--workers", str(arguments.workers), *["--accept-counts"] * arguments.accept_counts]
    stages = data_stages(dataset, out, raw=arguments.raw, options=options)
    pipeline, keys = Pipeline({stage.name: stage for stage in stages}), NAMES[: STAGES.index(arguments.last) + 1]
    pipeline.check_places(keys)
    run_data_stages(pipeline, out, keys)
    if arguments.last == "report":
        print(f"== report: {write_report(dataset, out)}", flush=True)


if __name__ == "__main__":
    run_command(main)
