"""Print a table of the paper with the paper's scores and ours, or a row for each run record.

  scripts.table 3                     Table 3: each score of the paper, ours from work/<dataset>/<model>/record.json,
                                      and the commands of missing runs
  scripts.table work/*/*/record.json  a row for each run, of any datasets

The signatures of the scores follow the table. --csv also writes the table as CSV, with a column for each part of a
number (mean, standard deviation), and with the losses, time and speed of the trainings. --latex also writes a tabular
for the package booktabs, with the signatures as comments.
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.errors import UserError
from data_prep.common.outputs import check_writable
from scripts.tables import records
from scripts.tables.cells import Table, write_csv, write_latex
from scripts.tables.measured import Measured
from scripts.tables.published import read_tables
from scripts.tables.records import read_record

WORK = CHECKOUT / "work"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("what", nargs="+", metavar="N | RECORD", help="numbers of the paper's tables, or record.json files of runs")
    add("--work", type=Path, metavar="DIR", default=WORK, help="folder of the runs (default: work)")
    add("--csv", type=Path, metavar="FILE", help="also write the table as CSV")
    add("--latex", type=Path, metavar="FILE", help="also write the table for LaTeX")
    arguments = parser.parse_args(argv)
    check_writable(*filter(None, (arguments.csv, arguments.latex)))
    if all(map(str.isdecimal, arguments.what)):
        published, numbers = read_tables(), [int(number) for number in arguments.what]
        if unknown := [number for number in numbers if number not in published]:
            raise UserError(f"no Table {unknown[0]}; the paper's are {', '.join(map(str, published))}")
        measured = [Measured(published[number], arguments.work) for number in numbers]
        options = "" if arguments.work == WORK else f" --work {arguments.work}"
        print("\n\n".join(table.as_text(options) for table in measured))
        tables: list[Table] = [table.columns() for table in measured]
        notes = [remark for table in measured for remark in table.remarks(options)]
    else:
        runs = [read_record(Path(path)) for path in arguments.what]
        print(records.as_text(runs))
        tables, notes = records.as_tables(runs), [line for run in runs for line in records.signatures(run)]
    if arguments.csv:
        write_csv(arguments.csv, tables)
    if arguments.latex:
        write_latex(arguments.latex, tables, notes, "python -m scripts.table")


if __name__ == "__main__":
    run_command(main)
