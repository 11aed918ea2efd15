"""Print a table of the paper with the paper's figures and ours, or a row for each of some run records.

  scripts.table 3                     Table 3: each figure of the paper, ours from work/<dataset>/<model>/record.json,
                                      and the commands of what has not been run
  scripts.table 3 --out DIR           the same, and DIR/table3.md, table3.csv and table3.png
  scripts.table work/*/*/record.json  a row for each run, of whatever dataset

The signatures of the scores follow the table.
"""

from collections.abc import Sequence
from pathlib import Path

from scripts.common import CHECKOUT
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.files import atomic_file
from scripts.reproduce.record import read_record
from scripts.tables import plot, records, render
from scripts.tables.measured import Runs, baseline, cells
from scripts.tables.published import Table, read_tables

WORK = CHECKOUT / "work"


def paper_table(table: Table, runs: Runs, options: str, out: Path | None) -> str:
    """A table of the paper as text; with ``out`` also as files in that folder. ``options``: of reproduce.py."""
    content = cells(table, runs)
    below = render.remarks(table, content, baseline(table, runs), options)
    below += [f"{run} was made with other settings than configs/{run}.yaml has now." for run in runs.outdated]
    for record in runs.of(table):
        below += ["", *records.signatures(record)]
    if out is not None:
        name = f"table{table.number}"
        plot.draw(table, content, out / f"{name}.png")
        files = {
            f"{name}.md": render.as_markdown(table, content, below, f"{name}.png"),
            f"{name}.csv": render.as_csv(table, content),
        }
        for file, text in files.items():
            with atomic_file(out / file) as f:
                f.write(text)
    return render.as_text(table, content, below)


def choose(given: Sequence[str]) -> Table | None:
    """The table that was asked for by its number; None where records were."""
    if len(given) != 1 or not given[0].isdecimal():
        return None
    tables = read_tables()
    if (number := int(given[0])) not in tables:
        raise UserError(f"no Table {number}; the paper's are {', '.join(map(str, tables))}")
    return tables[number]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", nargs="+", metavar="N | RECORD", help="a table's number, or the record.json of runs")
    parser.add_argument("--work", type=Path, metavar="DIR", default=WORK, help="where the runs are")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write Markdown, CSV and a plot here, too")
    arguments = parser.parse_args()
    table = choose(arguments.what)
    if table is not None:
        options = "" if arguments.work == WORK else f" --work {arguments.work}"
        print(paper_table(table, Runs(arguments.work), options, arguments.out))
    elif arguments.out is not None:
        raise UserError("--out goes with the number of a table, not with records; scripts.compare draws runs")
    else:
        print(records.as_text([read_record(Path(path)) for path in arguments.what]))


if __name__ == "__main__":
    run_command(main)
