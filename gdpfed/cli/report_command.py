"""``gdpfed report``: compare finished runs."""

import argparse
import sys

from gdpfed.cli.command import Command, make_console, user_path

EXAMPLES = """\
gdpfed report runs/*                       all runs side by side
gdpfed report runs/* --output comparison   as Markdown, CSV and pictures
gdpfed report runs/* --markdown            tables to paste"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=user_path, metavar="RUN", help="directory of a finished run")
    parser.add_argument(
        "--output", type=user_path, metavar="DIR", help="write report.md, CSV files and pictures"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.report.finished_run import UnfinishedError, read_run
    from gdpfed.report.lines import lines_of
    from gdpfed.report.report_files import tables_of, write_report

    runs, unfinished = [], []
    for path in options.runs:
        try:
            runs.append(read_run(path))
        except UnfinishedError as error:
            unfinished.append(error)
    if not runs:
        raise unfinished[0]
    for each in unfinished:
        print(f"gdpfed: left out: {each}", file=sys.stderr)
    lines = lines_of(runs)
    written = None if options.output is None else write_report(lines, options.output)
    console = make_console()
    for table in tables_of(lines).values():
        if options.markdown:
            print(table.to_markdown())
        else:
            console.print(table.to_rich())
    if written and not options.markdown:
        console.print(f"The report is in {written}", soft_wrap=True)
    return 0


COMMAND = Command(
    name="report",
    help="compare finished runs",
    description=(
        "Compare finished runs: accuracy, spent budgets, noise, traffic and time. Runs that differ only in "
        "run.seed are one line, with mean and standard deviation."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
