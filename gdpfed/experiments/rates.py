"""Sampling rates that solve Problem 1, as a budget varies."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from conf.experiment import Experiment
from gdpfed.experiments.cells import Cell
from gdpfed.experiments.footnotes import Footnotes
from gdpfed.experiments.layout import dataset_label
from gdpfed.experiments.planned import plan_or_reason
from gdpfed.experiments.presentation import Presentation
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sampling_rates import closed_form_sampling_rates
from gdpfed.report.style import COLOURS, line_style, new_figure, new_panels, save, shared_legend, styled
from gdpfed.report.table import Table

FIGURE_HEADINGS = ("dataset", "row", "group", "epsilon", "rate_percent", "closed_form_percent")
PANEL_WIDTH_INCHES, PANEL_HEIGHT_INCHES = 3.4, 2.6

Planned = Sequence[tuple[Cell, PrivacyPlan | str]]


def present_rates(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Plan every cell."""
    planned = [(cell, plan_or_reason(cell)) for cell in cells]
    rows = [row for cell, plan in planned if not isinstance(plan, str) for row in _figures(cell, plan)]
    return Presentation(
        tables=[_table(experiment, name, planned) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, rows),
        draw=partial(_draw, datasets, planned),
    )


def closed_form(plan: PrivacyPlan) -> tuple[float, ...]:
    """The optimum for equal groups without bounds on the rates."""
    return tuple(
        closed_form_sampling_rates(
            tuple(group.epsilon for group in plan.groups),
            tuple(len(group.clients) for group in plan.groups),
            sampling_rate=plan.sampling_rate,
            delta=plan.delta,
        )
    )


def _table(experiment: Experiment, dataset: str, planned: Planned) -> Table:
    footnotes = Footnotes()
    own = [(experiment.rows[cell.row].label, plan) for cell, plan in planned if cell.dataset == dataset]
    groups = max((len(plan.groups) for _, plan in own if not isinstance(plan, str)), default=1)
    headings = [experiment.row_heading, "budgets", *(f"q_{index + 1} (%)" for index in range(groups))]
    rows = [[label, *_row(plan, groups, footnotes)] for label, plan in own]
    return Table(f"{experiment.title}, {dataset_label(dataset)}", headings, rows, footnotes.text())


def _row(plan: PrivacyPlan | str, groups: int, footnotes: Footnotes) -> list[str]:
    if isinstance(plan, str):
        return [footnotes.mark(plan), *[""] * groups]
    budgets = ", ".join(f"{group.epsilon:g}" for group in plan.groups)
    return [budgets, *(f"{100 * group.sampling_rate:.2f}" for group in plan.groups)]


def _figures(cell: Cell, plan: PrivacyPlan) -> list[list[str]]:
    return [
        [
            *(cell.dataset, cell.row, str(index), f"{group.epsilon:g}"),
            *(f"{100 * group.sampling_rate:.5f}", f"{100 * expected:.5f}"),
        ]
        for index, (group, expected) in enumerate(zip(plan.groups, closed_form(plan), strict=True))
    ]


@styled
def _draw(datasets: Sequence[str], planned: Planned, path: Path) -> None:
    rows = -(-len(datasets) // 2)
    figure = new_figure(PANEL_WIDTH_INCHES * min(2, len(datasets)) + 0.8, PANEL_HEIGHT_INCHES * rows)
    panels = new_panels(figure, len(datasets), columns=2)
    for axes, dataset in zip(panels, datasets, strict=True):
        plans = [plan for cell, plan in planned if cell.dataset == dataset and not isinstance(plan, str)]
        axes.set_title(dataset_label(dataset))
        _draw_rates(axes, sorted(plans, key=lambda plan: plan.groups[0].epsilon))
    shared_legend(figure, panels)
    save(figure, path)


def _draw_rates(axes: Axes, plans: Sequence[PrivacyPlan]) -> None:
    budgets = [plan.groups[0].epsilon for plan in plans]
    for index in range(len(plans[0].groups) if plans else 0):
        rates = [100 * plan.groups[index].sampling_rate for plan in plans]
        axes.plot(budgets, rates, label=f"group {index + 1}", **line_style(index))
        expected = [100 * closed_form(plan)[index] for plan in plans]
        label = "closed form" if index == 0 else None
        axes.plot(budgets, expected, "x", color=COLOURS[-1], markersize=7, markeredgewidth=0.8, label=label)
    axes.set_xlabel("budget of group 1, $\\epsilon_1$")
    axes.set_ylabel("sampling rate (%)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
