"""``gdpfed report``: compare finished runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.cli.command import Command, cli_path, make_console
from gdpfed.cli.named_runs import finished_runs, require_runs
from gdpfed.errors import AuditError, ConfigError, InputError, ReportError
from gdpfed.json_files import WRONG_FORM

if TYPE_CHECKING:
    from gdpfed.report.comparison import Line

EXAMPLES = """\
gdpfed report runs/*                       all runs side by side
gdpfed report runs/sweep                   those of a directory
gdpfed report runs/* --output comparison   as Markdown, CSV and pictures
gdpfed report runs/* --markdown            tables to paste
gdpfed report runs/heart --html            one run on one page, with its audit
gdpfed report runs/* --html                several side by side on one page"""
PAGE_FOLDER = Path("comparison")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        type=cli_path,
        metavar="RUN",
        help="a run, or a directory with runs in it or one deeper",
    )
    parser.add_argument(
        "--output", type=cli_path, metavar="DIR", help="write report.md, CSV files and pictures"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--latex", action="store_true", help="print the tables as LaTeX, for booktabs")
    parser.add_argument(
        "--html",
        action="store_true",
        help="write report.html, a page that needs no network: of one run, in its directory, with its audit; "
        f"of several side by side, in DIR of --output (default: {PAGE_FOLDER})",
    )


def _execute(options: argparse.Namespace) -> int:
    require_runs(options.runs)
    if options.html and (options.markdown or options.latex):
        raise ConfigError("--html writes a page, and --markdown and --latex print tables: choose one")
    if options.markdown and options.latex:
        raise ConfigError("--markdown and --latex each print the tables: choose one")
    from gdpfed.report.comparison import lines_of
    from gdpfed.report.run_folders import run_paths

    if options.html and len(paths := list(run_paths(options.runs))) == 1:
        return _write_page(paths[0], options)
    runs = finished_runs(options.runs)
    if options.html:
        from gdpfed.report.comparison_page import write_comparison_page

        page = write_comparison_page(lines_of(runs), options.output or PAGE_FOLDER)
        make_console().print(f"The page is {page}", soft_wrap=True)
    else:
        _show_comparison(lines_of(runs), options)
    return 0


def _show_comparison(lines: "Sequence[Line]", options: argparse.Namespace) -> None:
    """Print and save the comparison of finished runs, and name results that are not above chance."""
    from gdpfed.report.report_tables import chance_lines, tables_of

    written = None
    if options.output is not None:
        # What draws takes a second to import.
        from gdpfed.report.report_files import write_report

        written = write_report(lines, options.output)
    console, pasted = make_console(), options.markdown or options.latex
    for table in tables_of(lines).values():
        if pasted:
            print(table.to_latex() if options.latex else table.to_markdown())
        else:
            console.print(table.to_rich())
    if written and not pasted:
        console.print(f"The report is in {written}", soft_wrap=True)
    for line in chance_lines(lines):
        print(line, file=sys.stderr) if pasted else console.print(line, soft_wrap=True)


def _write_page(path: Path, options: argparse.Namespace) -> int:
    from gdpfed.audit.run_audit import audit_run
    from gdpfed.cli.audit_tables import run_table, verdict
    from gdpfed.report.finished_run import read_run
    from gdpfed.report.run_page import Checked, write_page
    from gdpfed.runs.file_formats import PAGE_FILE, PAGE_SEAL_FILE

    if options.output:
        raise ConfigError(
            f"--html writes the page of the one run {path} into its directory: leave out --output, or name "
            "several runs"
        )
    run = read_run(path)
    # A page of before is not part of what is audited.
    for name in (PAGE_FILE, PAGE_SEAL_FILE):
        (run.path / name).unlink(missing_ok=True)
    try:
        audit = audit_run(run.path)
        checked = Checked(audit.passed, verdict(audit), audit.findings, run_table(audit))
    except AuditError as error:
        checked = Checked(False, f"The audit cannot be made: {error}")
    said = (*checked.findings, checked.verdict)[0]
    try:
        page = write_page(run, checked)
    except WRONG_FORM as error:
        if checked.passed or isinstance(error, InputError):
            raise
        raise ReportError(f"{run.path} has damaged files, of which no page can be made: {said}") from None
    make_console().print(f"The page is {page}", soft_wrap=True)
    if not checked.passed:
        print(f"gdpfed: {run.path} does not pass its audit, and the page says so: {said}", file=sys.stderr)
    return 0 if checked.passed else 1


COMMAND = Command(
    name="report",
    help="compare finished runs",
    description=(
        "Compare finished runs: accuracy, spent budgets, noise, traffic and time. Runs that differ only in "
        "run.seed are one line, with mean and standard deviation; where seeds are shared, every line is "
        "compared with the first seed by seed, with 95 % intervals. A run whose files are not those that its "
        "seal names is refused."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
