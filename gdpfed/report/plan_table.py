"""A privacy plan as a table, and several side by side."""

from collections.abc import Iterable, Sequence
from io import StringIO

from rich.console import Console, Group
from rich.table import Table

from gdpfed.methods.base import Method
from gdpfed.methods.plan_tables import PlanTable
from gdpfed.report.client_report import number_or_none
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


def comparison_table(rows: Iterable[tuple[str, str, Method | str]]) -> Group:
    """Methods and accountants side by side, one line a group; below it why any plan was refused."""
    table = Table(title="plans side by side", title_justify="left", show_lines=True)
    for heading in (
        "method",
        "accountant",
        "epsilon",
        "rate q",
        "sigma²",
        "Lambda",
        "step Σωr",
        "noise/step",
    ):
        table.add_column(heading, justify="left" if heading in ("method", "accountant") else "right")
    reasons: list[str] = []
    for name, accountant, planned in rows:
        if isinstance(planned, str):
            if planned not in reasons:
                reasons.append(planned)
            table.add_row(name, accountant, f"refused ({reasons.index(planned) + 1})")
        else:
            table.add_row(name, accountant, *_comparison_row(planned))
    notes = [f"({number}) {reason}" for number, reason in enumerate(reasons, start=1)]
    return Group(Fitted(table), *notes)


def _comparison_row(method: Method) -> Sequence[str]:
    plan, weighting = method.plan, method.weighting
    groups = plan.groups
    return (
        "\n".join(number_or_none(group.epsilon, "g") for group in groups),
        "\n".join(f"{100 * group.sampling_rate:.2f} %" for group in groups),
        "\n".join(f"{group.noise_variance_multiplier:.3f}" for group in groups),
        f"{weighting.noise_magnitude(plan):.3f}",
        f"{weighting.effective_step(plan):.2f}",
        f"{weighting.noise_per_step(plan):.5f}",
    )


def plan_lines(method: Method) -> list[str]:
    """The table as plain text lines, for a log."""
    console = Console(file=StringIO(), width=WIDTH, no_color=True, record=True)
    console.print(plan_table(method))
    return console.export_text().splitlines()
