"""A privacy plan as a table, and several side by side."""

from collections.abc import Iterable, Sequence
from io import StringIO
from math import isinf

from rich.console import Console, Group
from rich.table import Table

from gdpfed.methods.base import Method
from gdpfed.methods.plan_tables import PlanTable
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import WIDTH, Fitted
from gdpfed.report.inference_lines import inference_line
from gdpfed.report.record_plan_table import record_table

HEADINGS = (
    "group",
    "epsilon",
    "vs server*",
    "clients",
    "rate q",
    "cohort r",
    "sigma",
    "sigma²",
    "keep",
    "weight ω",
)


def _number(value: float, form: str) -> str:
    return "none" if isinf(value) else format(value, form)


def plan_table(method: Method) -> Fitted | Group:
    """Return the method's own tables, or one with one row a group: its budget, its noise and its rates."""
    plan = method.plan
    if own := method.plan_tables():
        parts: list[Fitted | str] = []
        for each in own:
            parts += [Fitted(_own_table(each)), *each.notes]
        return Group(*parts)
    if plan.unit == "record":
        return Fitted(record_table(plan, method.name))
    promise = f"{plan.unit}-level DP" if plan.private else "no privacy"
    table = Table(
        title=f"{method.name}: {promise}, {plan.num_rounds} rounds",
        caption=_caption(method),
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for index in range(len(plan.groups)):
        table.add_row(*_row(method, index))
    return Fitted(table)


def _own_table(own: PlanTable) -> Table:
    table = Table(title=own.title, title_justify="left")
    for heading in own.headings:
        table.add_column(heading, justify="left" if heading in own.text_columns else "right")
    for row in own.rows:
        table.add_row(*row)
    return table


def _row(method: Method, index: int) -> Sequence[str]:
    group, weighting = method.plan.groups[index], method.weighting
    return (
        str(index),
        _number(group.epsilon, "g"),
        f"{_number(group.epsilon_against_server, '.2f')} (K={group.participations_p99})",
        str(len(group.clients)),
        f"{100 * group.sampling_rate:.2f} %",
        f"{group.expected_cohort_size:.1f}",
        f"{group.noise_multiplier:.3f}",
        f"{group.noise_variance_multiplier:.3f}",
        f"{weighting.keep_fractions[index]:g}",
        f"{weighting.group_weights[index]:.5f}",
    )


def _caption(method: Method) -> str:
    plan = method.plan
    if not plan.private:
        return "No clipping and no noise: nothing is promised."
    hidden = "" if plan.sums_hidden else " Secure aggregation is off: nothing is promised against the server."
    orders = " (whole orders)" if (plan.accountant, plan.renyi_orders) == ("rdp", "whole") else ""
    return (
        f"delta {plan.delta:.3g}, accountant {plan.accountant}{orders}, {plan.sampling} sampling, "
        f"{plan.adjacency} adjacency, {_clipping(plan)}, "
        f"{plan.noise} noise, Lambda {method.weighting.noise_magnitude(plan):.3f}{_step(method)}\n"
        "* against the server, which draws the cohorts, and members of the same sums: a client that takes "
        f"part K times, the 99th percentile.{hidden}\n{inference_line(plan)}"
    )


def _step(method: Method) -> str:
    rate = method.server_learning_rate
    return "" if rate == 1.0 else f", the server's step times {rate:.3g}"


def _clipping(plan: PrivacyPlan) -> str:
    kept = 1.0 if plan.adaptive_clipping is None else plan.adaptive_clipping.update_share
    norms = [kept * group.clipping_norm for group in plan.groups]
    shared = f", one sum with noise of standard deviation {plan.groups[0].noise_stddev:.3f}"
    apart = f" on average, by group {', '.join(f'{norm:.3f}' for norm in norms)}"
    return (
        f"clipping norm {plan.clipping_norm:g}{_adapted(plan)}"
        f"{apart if len(set(norms)) > 1 else ''}{shared if plan.one_sum else ''}"
    )


def _adapted(plan: PrivacyPlan) -> str:
    adaptive = plan.adaptive_clipping
    if adaptive is None:
        return ""
    more = 100 * (1 / adaptive.update_share - 1)
    return (
        f" at first, then where {100 * adaptive.quantile:g} % of the updates are within it (which costs "
        f"{more:.2g} % more noise)"
    )


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
        "\n".join(_number(group.epsilon, "g") for group in groups),
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
