"""A report as files: Markdown with its tables as CSV and its pictures beside it."""

from collections.abc import Sequence
from pathlib import Path

from gdpfed.errors import ReportError
from gdpfed.report.comparison import budgets_table, results_table
from gdpfed.report.comparison_pictures import draw_all
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.lines import Line
from gdpfed.report.parts import Parts, parts_table
from gdpfed.report.table import Table

REPORT_FILE = "report.md"


def tables_of(lines: Sequence[Line]) -> dict[str, Table]:
    """The tables of a comparison, by the name of their file.

    Raises:
        ReportError: lines that show different metrics, or a damaged run.
    """
    tables = {"results": results_table(lines), "budgets": budgets_table(lines)}
    found = [(_named(line, run), Parts.read(run.path)) for line in lines for run in line.runs]
    with_parts = [(label, parts) for label, parts in found if parts is not None]
    return tables | ({"parts": parts_table(with_parts, lines[0].metric)} if with_parts else {})


def _named(line: Line, run: FinishedRun) -> str:
    return line.label if len(line.runs) == 1 else f"{line.label}, seed {run.seed}"


def write_report(lines: Sequence[Line], directory: Path) -> Path:
    """Write everything into a directory, made if need be; returns the Markdown file.

    Raises:
        ReportError: the file system refuses.
    """
    tables = tables_of(lines)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            (directory / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        pictures = "\n\n".join(f"![{Path(name).stem}]({name})" for name in draw_all(lines, directory))
        runs = "\n".join(f"* {line.label}: {', '.join(str(run.path) for run in line.runs)}" for line in lines)
        texts = "\n".join(table.to_markdown() for table in tables.values())
        text = f"# Comparison of runs\n\n{texts}\n{pictures}\n\nRuns:\n\n{runs}\n"
        (directory / REPORT_FILE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"--output {directory} cannot be written: {error.strerror}") from None
    return directory / REPORT_FILE
