"""Print a table of the paper with the paper's figures and ours, or a row for each of some run records.

  scripts.table 3                     Table 3: each figure of the paper, ours from work/<dataset>/<model>/record.json,
                                      and the commands of what has not been run
  scripts.table work/*/*/record.json  a row for each run, of whatever dataset

The signatures of the scores follow the table.
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.common import CHECKOUT
from data_prep.common.command import argument_parser, run_command
from data_prep.common.errors import UserError
from scripts.tables import records
from scripts.tables.measured import Measured
from scripts.tables.published import Table, read_tables
from scripts.tables.records import read_record

WORK = CHECKOUT / "work"


def paper_table(table: Table, work: Path) -> str:
    """A table of the paper as text."""
    return Measured(table, work).as_text("" if work == WORK else f" --work {work}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", nargs="+", metavar="N | RECORD", help="numbers of tables, or the record.json of runs")
    parser.add_argument("--work", type=Path, metavar="DIR", default=WORK, help="where the runs are (default: work)")
    arguments = parser.parse_args(argv)
    if all(map(str.isdecimal, arguments.what)):
        tables, numbers = read_tables(), [int(number) for number in arguments.what]
        if odd := [number for number in numbers if number not in tables]:
            raise UserError(f"no Table {odd[0]}; the paper's are {', '.join(map(str, tables))}")
        print("\n\n".join(paper_table(tables[number], arguments.work) for number in numbers))
    else:
        print(records.as_text([read_record(Path(path)) for path in arguments.what]))


if __name__ == "__main__":
    run_command(main)
