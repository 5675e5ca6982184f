"""Best group sampling rates, at which noise harms training least (GDPFed paper), while one budget varies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.extras.experiments.definitions import Experiment
from gdpfed.extras.experiments.presentation import Footnotes, Presentation
from gdpfed.methods.gdpfed import GDPFedPlus
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import configured_delta, group_rates
from gdpfed.privacy.planning.sampling_rates import closed_form_sampling_rates
from gdpfed.report.console import Table
from gdpfed.report.metric_display import COLOURS, dataset_label
from gdpfed.report.plots import line_style, new_figure, new_panels, save, shared_legend, styled

FIGURE_HEADINGS = ("dataset", "row", "group", "epsilon", "rate_percent", "closed_form_percent")
PANEL_WIDTH_INCHES, PANEL_HEIGHT_INCHES = 3.4, 2.6


@dataclass(frozen=True)
class Rates:
    """The sampling rates of one configuration's groups; the strictest budget comes first.

    `closed_form`: the optimum for equal groups without bounds on the rates.
    """

    epsilons: tuple[float, ...]
    sampling_rates: tuple[float, ...]
    closed_form: tuple[float, ...]


Solved = Sequence[tuple[Cell, Rates | str]]


def present_rates(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Solve the paper's Problem 1 (best group sampling rates) for every cell; return tables and a picture."""
    solved, rows = list[tuple[Cell, Rates | str]](), list[list[str]]()
    for cell in cells:
        config = cell.config
        try:
            groups = configured_groups(config)
            epsilons = tuple(group.epsilon for group in groups)
            closed_form = closed_form_sampling_rates(
                epsilons,
                tuple(group.size for group in groups),
                sampling_rate=config.privacy.sampling_rate,
                delta=configured_delta(config),
            )
            rates = group_rates(config, groups, sparsified=GDPFedPlus.sparsified)
        except (ConfigError, PrivacyError) as error:
            solved.append((cell, str(error)))
            continue
        solved.append((cell, Rates(epsilons, rates, closed_form)))
        by_group = zip(epsilons, rates, closed_form, strict=True)
        rows += [
            [cell.dataset, cell.row, str(index), f"{epsilon:g}", f"{100 * rate:.5f}", f"{100 * expected:.5f}"]
            for index, (epsilon, rate, expected) in enumerate(by_group)
        ]
    return Presentation(
        tables=[_table(experiment, name, solved) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, rows),
        draw=partial(_draw, datasets, solved),
    )


def _table(experiment: Experiment, dataset: str, solved: Solved) -> Table:
    footnotes = Footnotes()
    own = [(experiment.rows[cell.row].label, rates) for cell, rates in solved if cell.dataset == dataset]
    groups = max((len(rates.epsilons) for _, rates in own if not isinstance(rates, str)), default=1)
    headings = [experiment.row_heading, "budgets", *(f"q_{index + 1} (%)" for index in range(groups))]
    rows = []
    for label, rates in own:
        if isinstance(rates, str):
            rows.append([label, footnotes.mark(rates), *[""] * groups])
        else:
            budgets = ", ".join(f"{epsilon:g}" for epsilon in rates.epsilons)
            rows.append([label, budgets, *(f"{100 * rate:.2f}" for rate in rates.sampling_rates)])
    return Table(f"{experiment.title}, {dataset_label(dataset)}", headings, rows, footnotes.text())


@styled
def _draw(datasets: Sequence[str], solved: Solved, path: Path) -> None:
    rows = -(-len(datasets) // 2)
    figure = new_figure(PANEL_WIDTH_INCHES * min(2, len(datasets)) + 0.8, PANEL_HEIGHT_INCHES * rows)
    panels = new_panels(figure, len(datasets), columns=2)
    for axes, dataset in zip(panels, datasets, strict=True):
        own = [rates for cell, rates in solved if cell.dataset == dataset and not isinstance(rates, str)]
        axes.set_title(dataset_label(dataset))
        by_budget = sorted(own, key=lambda rates: rates.epsilons[0])
        budgets = [rates.epsilons[0] for rates in by_budget]
        groups = range(len(by_budget[0].epsilons) if by_budget else 0)
        for index in groups:
            drawn = [100 * rates.sampling_rates[index] for rates in by_budget]
            axes.plot(budgets, drawn, label=f"group {index + 1}", **line_style(index))
        for index in groups:
            expected = [100 * rates.closed_form[index] for rates in by_budget]
            label = None if index else "closed form"
            axes.plot(
                budgets, expected, "x", color=COLOURS[-1], markersize=7, markeredgewidth=0.8, label=label
            )
        axes.set_xlabel("budget of group 1, $\\epsilon_1$")
        axes.set_ylabel("sampling rate (%)")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)
