"""A report as files: Markdown with its tables as CSV and its pictures beside it."""

from collections.abc import Sequence
from pathlib import Path

from gdpfed.errors import ReportError
from gdpfed.report.comparison import budgets_table, results_table
from gdpfed.report.comparison_pictures import draw_all
from gdpfed.report.lines import Line
from gdpfed.report.table import Table

REPORT_FILE = "report.md"


def tables_of(lines: Sequence[Line]) -> dict[str, Table]:
    """The tables of a comparison, by the name of their file."""
    return {"results": results_table(lines), "budgets": budgets_table(lines)}


def write_report(lines: Sequence[Line], directory: Path) -> Path:
    """Write everything into a directory, made if need be; returns the Markdown file.

    Raises:
        ReportError: the file system refuses.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables_of(lines).items():
            (directory / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        pictures = "\n\n".join(f"![{Path(name).stem}]({name})" for name in draw_all(lines, directory))
        runs = "\n".join(f"* {line.label}: {', '.join(str(run.path) for run in line.runs)}" for line in lines)
        tables = "\n".join(table.to_markdown() for table in tables_of(lines).values())
        text = f"# Comparison of runs\n\n{tables}\n{pictures}\n\nRuns:\n\n{runs}\n"
        (directory / REPORT_FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"--output {directory} cannot be written: {error.strerror}") from None
    return directory / REPORT_FILE
