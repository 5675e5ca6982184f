"""``gdpfed columns``: write a draft of columns.yaml (a table's columns), which the user completes by hand."""

import argparse
import sys

from gdpfed.cli.command import TABLES, Command, cli_path, refuse_existing
from gdpfed.errors import ConfigError

EXAMPLES = """\
gdpfed columns patients.csv --label diagnosis
gdpfed columns patients.csv --label diagnosis --output shared/columns.yaml"""
NOT_PRIVATE = (
    "gdpfed: ranges and values in {} are those of the rows: each end of a range is the figure of a patient, "
    "and no budget covers it"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", type=cli_path, metavar="TABLE", help=TABLES)
    parser.add_argument("--label", metavar="COLUMN", help="the column that is to be predicted")
    parser.add_argument(
        "--from-data",
        action="store_true",
        help="take ranges and values from the rows, which is not private: only for tables that are public",
    )
    parser.add_argument(
        "--coarse",
        action="store_true",
        help="ranges of a million to both sides, for gdpfed stats to find narrower ones by noised counts",
    )
    parser.add_argument(
        "--output", type=cli_path, metavar="FILE", help="where to write (columns.yaml beside the table)"
    )


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.files import PUBLIC_MODE, save_whole
    from gdpfed.learning.data.declaration import COLUMNS_FILE
    from gdpfed.learning.data.first_columns import check_is_table, first_columns

    check_is_table(options.table)
    output = options.output or options.table.with_name(COLUMNS_FILE)
    refuse_existing(output, "--output")
    if options.coarse and options.from_data:
        raise ConfigError("--coarse and --from-data both say what ranges are: leave one out")
    text = first_columns(options.table, options.label, from_data=options.from_data, coarse=options.coarse)
    save_whole(output, text.encode(), mode=PUBLIC_MODE)
    if options.from_data:
        print(NOT_PRIVATE.format(output), file=sys.stderr)
    print(f"The declaration to complete is in {output}")
    return 0


COMMAND = Command(
    name="columns",
    help="write a first declaration of a table's columns",
    description=(
        "Look at a table and write columns.yaml: which columns are numbers, dates or categories. Ranges and "
        "values are left open, to be filled in from what is known without the rows."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
