"""``gdpfed check``: list all faults of a data table; training would stop at the first one."""

import argparse
from typing import TYPE_CHECKING

from gdpfed.cli.command import TABLES, Command, busy, cli_path
from gdpfed.errors import ConfigError, printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gdpfed.learning.data.table_check import Finding

EXAMPLES = """\
gdpfed check patients.csv                  with columns.yaml beside it
gdpfed check patients.csv shared/columns.yaml
gdpfed check tables                        a folder with a file a party"""
MOST_LINES = 5
"""Of the lines with one fault, that are named."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", type=cli_path, metavar="TABLE", help=f"{TABLES}, or a folder of them")
    parser.add_argument(
        "columns",
        type=cli_path,
        nargs="?",
        metavar="COLUMNS",
        help="the declaration (columns.yaml beside it)",
    )


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.learning.data.declaration import COLUMNS_FILE, read_columns
    from gdpfed.learning.data.party_files import not_read, tables_in
    from gdpfed.learning.data.persons import shared_person_words
    from gdpfed.learning.data.table_check import check_table

    path = options.table
    if not path.exists():
        raise ConfigError(f"{path} does not exist: name a CSV or Parquet file, or a folder of them")
    folder = path if path.is_dir() else path.parent
    columns = read_columns(options.columns or folder / COLUMNS_FILE)
    faults, persons = 0, list["npt.NDArray[np.int64]"]()
    for table in tables_in(path):
        with busy(printable(f"reading {table} ...")):
            rows, found = check_table(table, columns, persons)
        count = sum(each.is_fault for each in found)
        faults += count
        _say(f"{table}: {rows} rows, {count or 'no'} fault{'s' if count > 1 else ''}")
        for each in found:
            _say(f"  {_place_in_table(each)}{each.words}")
    if path.is_dir() and (shared := shared_person_words(persons, columns)):
        _say(f"{path}: note: {shared}")
    for name in not_read(path) if path.is_dir() else ():
        _say(f"{path / name}: this is not a table, and it is not read")
    return 1 if faults else 0


def _say(line: str) -> None:
    """Print a line at once, so that the user sees which table is done."""
    print(printable(line), flush=True)


def _place_in_table(finding: "Finding") -> str:
    lines = [str(line) for line in finding.lines]
    if not lines:
        return "" if finding.is_fault else "note: "
    more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(lines[:MOST_LINES])}{more}: "


COMMAND = Command(
    name="check",
    help="list everything that is wrong with a table",
    description=(
        "Read a table as a training does, and list all that it would refuse, by lines of the file and with "
        "what may be the cause; then what is odd, such as a range that is much too wide. Nothing leaves this "
        "machine. Exit status 0: no fault; 1: some."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
