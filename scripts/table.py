"""Print a table of the paper with the paper's figures and ours, or a row for each of some run records.

  scripts.table 3                     Table 3: each figure of the paper, ours from work/<dataset>/<model>/record.json,
                                      and the commands of what has not been run
  scripts.table 3 4 --out DIR         two of them, and DIR/table3.md and table3.csv, and so on
  scripts.table work/*/*/record.json  a row for each run, of whatever dataset

The signatures of the scores follow the table.
"""

from collections.abc import Sequence
from pathlib import Path

from scripts.common import CHECKOUT
from scripts.common.command import argument_parser, run_command
from scripts.common.errors import UserError
from scripts.common.outputs import atomic_file
from scripts.tables import records
from scripts.tables.measured import Measured
from scripts.tables.published import Table, read_tables
from scripts.tables.records import read_record

WORK = CHECKOUT / "work"


def paper_table(table: Table, work: Path, out: Path | None) -> str:
    """A table of the paper as text; with ``out`` also as files in that folder."""
    measured, name = Measured(table, work), f"table{table.number}"
    below = measured.remarks("" if work == WORK else f" --work {work}")
    if out is not None:
        files = {f"{name}.md": measured.as_markdown(below), f"{name}.csv": measured.as_csv()}
        for file, text in files.items():
            with atomic_file(out / file) as f:
                f.write(text)
    return measured.as_text(below)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", nargs="+", metavar="N | RECORD", help="numbers of tables, or the record.json of runs")
    parser.add_argument("--work", type=Path, metavar="DIR", default=WORK, help="where the runs are (default: work)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write Markdown and CSV here, too")
    arguments = parser.parse_args(argv)
    if all(map(str.isdecimal, arguments.what)):
        tables, numbers = read_tables(), [int(number) for number in arguments.what]
        if odd := [number for number in numbers if number not in tables]:
            raise UserError(f"no Table {odd[0]}; the paper's are {', '.join(map(str, tables))}")
        print("\n\n".join(paper_table(tables[number], arguments.work, arguments.out) for number in numbers))
    elif arguments.out is not None:
        raise UserError("--out goes with the number of a table, not with records")
    else:
        print(records.as_text([read_record(Path(path)) for path in arguments.what]))


if __name__ == "__main__":
    run_command(main)
