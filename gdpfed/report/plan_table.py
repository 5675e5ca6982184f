"""A privacy plan as a table."""

from io import StringIO

from rich.console import Console, Group
from rich.table import Table

from gdpfed.methods.base import Method
from gdpfed.methods.plan_tables import PlanTable
from gdpfed.report.console import WIDTH, Fitted
from gdpfed.report.mechanism_reports import report_of


def plan_table(method: Method) -> Fitted | Group:
    """Return the method's own tables, or the one of its mechanism."""
    if own := method.plan_tables():
        parts: list[Fitted | str] = []
        for each in own:
            parts += [Fitted(_own_table(each)), *each.notes]
        return Group(*parts)
    return Fitted(report_of(method.plan).table(method))


def _own_table(own: PlanTable) -> Table:
    table = Table(title=own.title, title_justify="left")
    for heading in own.headings:
        table.add_column(heading, justify="left" if heading in own.text_columns else "right")
    for row in own.rows:
        table.add_row(*row)
    return table


def plan_lines(method: Method) -> list[str]:
    """The table as plain text lines, for a log."""
    console = Console(file=StringIO(), width=WIDTH, no_color=True, record=True)
    console.print(plan_table(method))
    return console.export_text().splitlines()
