"""The tables of a comparison of runs, made without importing plotting or training code."""

from collections.abc import Iterator, Sequence

from gdpfed.report.chance import AtChance
from gdpfed.report.comparison import Line
from gdpfed.report.comparison_tables import budgets_table, differences_table, results_table
from gdpfed.report.console import Table
from gdpfed.report.finished_run import FinishedRun
from gdpfed.report.parts import Parts, parts_table


def tables_of(lines: Sequence[Line]) -> dict[str, Table]:
    """Return the tables of a comparison, by file name.

    Raises ReportError: lines that show different metrics, or a damaged run.
    """
    differences = differences_table(lines)
    tables = {"results": results_table(lines)} | ({"differences": differences} if differences else {})
    tables |= {"budgets": budgets_table(lines)}
    found = [(_named(line, run), Parts.read(run.path)) for line in lines for run in line.runs]
    with_parts = [(label, parts) for label, parts in found if parts is not None]
    return tables | ({"parts": parts_table(with_parts, lines[0].metric)} if with_parts else {})


def chance_lines(lines: Sequence[Line]) -> Iterator[str]:
    """Yield one line for every run whose accuracy is not above chance.

    Raises RunError: a run's file about it is damaged.
    """
    for line in lines:
        for run in line.runs:
            found = AtChance.read(run.path)
            if found is not None:
                yield f"{_named(line, run)}: {found.line}"


def _named(line: Line, run: FinishedRun) -> str:
    return line.label if len(line.runs) == 1 else f"{line.label}, seed {run.seed}"
