"""A privacy plan as a table, several side by side, and proposed settings."""

from io import StringIO
from textwrap import fill

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gdpfed.methods.base import Method, PlanTable
from gdpfed.methods.choose import Choice
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


CHOICE_WIDTH = 80
WHAT_IT_IS = (
    "Estimates in closed form, from the number of clients, their budgets and rate: no data was looked at, so "
    "no budget was spent. They are a start, and not optimal. Way: signal-to-noise ratio of all rounds, as a "
    "part of that of infinitely many rounds."
)

OF_RECORDS = (
    "Estimates in closed form, from the numbers of records, parties and parameters, and the budgets: no "
    "record was looked at, so no budget was spent. They are a start, and not optimal. A run takes them where "
    "nothing else is set."
)


def choice_report(choice: Choice) -> Group:
    """Return a table of the numbers of rounds, a reason for each setting, and all of them to paste."""
    table = Table(title="rounds compared", title_justify="left")
    for heading in ("rounds", "noise/step", "way", "server's step", "a client's rounds"):
        table.add_column(heading, justify="right")
    for each in choice.candidates:
        marked = f"> {each.num_rounds}" if each.num_rounds == choice.rounds else str(each.num_rounds)
        table.add_row(
            marked,
            f"{each.noise_per_step:.4f}",
            f"{100 * each.way:.0f} %",
            f"{each.step:.2f}",
            f"{each.participations:.1f}",
        )
    reasons = [
        fill(f"{each.override}: {each.reason}", CHOICE_WIDTH, subsequent_indent="    ")
        for each in choice.proposals
    ]
    paste = fill(" ".join(choice.overrides), CHOICE_WIDTH, break_on_hyphens=False, break_long_words=False)
    parts = [fill(WHAT_IT_IS, CHOICE_WIDTH), *reasons, f"to paste:\n{paste}\n"]
    if not choice.candidates:
        parts[0] = fill(OF_RECORDS, CHOICE_WIDTH)
    tables = [Fitted(table)] if choice.candidates else []
    return Group(*tables, *(Text(part) for part in parts))
