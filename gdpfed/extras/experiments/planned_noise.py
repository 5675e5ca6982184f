"""Compares noise multipliers as published, as found by the paper's search, and as computed by this code."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from conf.load import load
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.extras.experiments.definitions import Experiment
from gdpfed.extras.experiments.presentation import Footnotes, Presentation
from gdpfed.methods import make_method
from gdpfed.methods.base import Method
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.group_plan import GroupPlan
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import Table
from gdpfed.report.metric_display import ABSENT, Spread, dataset_label
from gdpfed.report.plots import (
    Dots,
    draw_dots,
    height_inches,
    new_figure,
    new_panels,
    save,
    shared_legend,
    styled,
)

AS_PUBLISHED = "rdp, as published"
LARGEST_NOISE_MULTIPLIER = 20.0
TOLERANCE = 0.01
COLUMNS = (AS_PUBLISHED, "rdp", "pld")
FIGURE_HEADINGS = (
    "dataset",
    "row",
    "group",
    "quantity",
    "calibration",
    "value",
    "published",
    "deviation_percent",
)


@dataclass(frozen=True, eq=False)
class NoiseCell:
    """One cell of a paper's table: the paper's values, and a privacy plan for each calibration of noise."""

    cell: Cell
    plans: Mapping[str, Method | str]
    variances: Sequence[float] | None
    magnitude: float | None


def present_noise(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Plan every table cell with every calibration of noise; return tables, numbers and a picture."""
    published, planned = experiment.published, []
    for cell in cells:
        rdp = _plan_or_reason(cell, "rdp")
        plans = {
            AS_PUBLISHED: rdp if isinstance(rdp, str) else as_published(rdp),
            "rdp": rdp,
            "pld": _plan_or_reason(cell, "pld"),
        }
        printed = published.variances.get(cell.row, {}).get(cell.dataset)
        magnitude = published.magnitude.get(cell.row, {}).get(cell.dataset)
        planned.append(NoiseCell(cell, plans, printed, magnitude))
    figures = []
    for each in planned:
        for name, method in each.plans.items():
            if isinstance(method, str):
                continue
            groups = list(enumerate(variances(method)))
            stated = each.variances or (None,) * len(groups)
            for (group, variance), figure in zip(groups, stated, strict=True):
                figures.append(_figure(each.cell, str(group), "sigma^2", name, variance, figure))
            noise = _noise_magnitude(method)
            figures.append(_figure(each.cell, "", "Lambda", name, noise, each.magnitude))
    return Presentation(
        tables=[_table(experiment, name, planned) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, figures),
        draw=partial(_draw, experiment, datasets, planned),
    )


def _plan_or_reason(cell: Cell, accountant: str) -> Method | str:
    try:
        return make_method(load([*cell.overrides, f"privacy.accountant={accountant}"]))
    except (ConfigError, PrivacyError) as error:
        return str(error)


def _table(experiment: Experiment, dataset: str, planned: Sequence[NoiseCell]) -> Table:
    footnotes = Footnotes()
    own = [each for each in planned if each.cell.dataset == dataset]
    labels = [experiment.rows[each.cell.row].label for each in own]
    headings = [experiment.row_heading, "rates q (%)"]
    headings += [f"{quantity} {name}" for quantity in ("sigma²", "Lambda") for name in ("paper", *COLUMNS)]
    rows = []
    for label, each in zip(labels, own, strict=True):
        plans = [each.plans[name] for name in COLUMNS]
        reasons = [plan for plan in plans if isinstance(plan, str)]
        if reasons:
            rows.append([label, footnotes.mark(reasons[0]), *[""] * (2 * len(COLUMNS) + 2)])
            continue
        sound = [plan for plan in plans if not isinstance(plan, str)]
        rows.append(
            [
                label,
                _lines([100 * group.sampling_rate for group in sound[0].plan.groups]),
                _lines(each.variances),
                *(_lines(variances(plan)) for plan in sound),
                ABSENT if each.magnitude is None else f"{each.magnitude:.2f}",
                *(f"{_noise_magnitude(method):.3f}" for method in sound),
            ]
        )
    return Table(f"{experiment.title}, {dataset_label(dataset)}", headings, rows, footnotes.text())


def variances(method: Method) -> list[float]:
    """Return the noise variance sigma_m^2 of every group."""
    return [group.noise_variance_multiplier for group in method.plan.groups]


def _noise_magnitude(method: Method) -> float:
    return method.weighting.noise_magnitude(method.plan)


def _lines(figures: Sequence[float] | None) -> str:
    return ABSENT if figures is None else "\n".join(f"{figure:.2f}" for figure in figures)


def _figure(
    cell: Cell, group: str, quantity: str, calibration: str, value: float, published: float | None
) -> list[str]:
    printed, deviation = "", ""
    if published is not None:
        printed, deviation = f"{published:g}", f"{100 * (value / published - 1):.2f}"
    return [cell.dataset, cell.row, group, quantity, calibration, f"{value:.5f}", printed, deviation]


@styled
def _draw(experiment: Experiment, datasets: Sequence[str], planned: Sequence[NoiseCell], path: Path) -> None:
    """Draw the noise magnitude Lambda for each calibration, with one panel for each data set."""
    height = height_inches(len(experiment.rows), kinds=len(COLUMNS) + 1)
    figure = new_figure(8.0 if len(datasets) > 1 else 6.4, height * -(-len(datasets) // 2))
    panels = new_panels(figure, len(datasets), columns=2, sharey=True)
    for axes, dataset in zip(panels, datasets, strict=True):
        own = [each for each in planned if each.cell.dataset == dataset]
        kinds = []
        for name in COLUMNS:
            plans = [each.plans[name] for each in own]
            magnitudes = [
                None if isinstance(plan, str) else Spread.of([_noise_magnitude(plan)]) for plan in plans
            ]
            kinds.append(Dots(name, magnitudes))
        printed = [None if each.magnitude is None else Spread.of([each.magnitude]) for each in own]
        if any(printed):
            kinds.append(Dots("paper", printed, hollow=True))
        axes.set_title(dataset_label(dataset))
        draw_dots(axes, [choice.label for choice in experiment.rows.values()], kinds, "noise magnitude Λ")
        axes.set_xlim(left=0)
    shared_legend(figure, panels)
    save(figure, path)


def as_published(method: Method) -> Method:
    """Return a copy of the method with the noise of the paper's search, accurate to 0.01 in epsilon.

    Opacus's ``get_noise_multiplier`` searches like this. At a budget of 0.5 its stop is 2 % of the budget:
    SVHN needs sigma^2 = 12.94 and the search, like the paper, says 13.20. It ends on the safe side, so the
    plan holds.
    """
    plan, printed = method.plan, copy(method)
    groups = tuple(_group_as_printed(plan, index) for index in range(len(plan.groups)))
    printed.plan = replace(plan, groups=groups)
    return printed


def _group_as_printed(plan: PrivacyPlan, index: int) -> GroupPlan:
    accountant = make_accountant(plan.accountant, plan.renyi_orders)
    group, event = plan.groups[index], plan.charges(index)[0].event
    if not isinstance(event, SampledGaussian):
        raise TypeError(f"Opacus's search does not apply to a plan of {event.kind}: compare another plan")
    budget = group.epsilon

    def epsilon(sigma: float) -> float:
        noised = replace(event, noise_stddev=sigma * event.clipping_norm)
        return accountant.epsilon(noised, plan.num_rounds, plan.delta)

    low, high = 0.0, LARGEST_NOISE_MULTIPLIER
    spent = epsilon(high)
    while spent > budget:
        high *= 2
        spent = epsilon(high)
    while budget - spent > TOLERANCE:
        middle = (low + high) / 2
        at_middle = epsilon(middle)
        if at_middle < budget:
            high, spent = middle, at_middle
        else:
            low = middle
    ranges = tuple(replace(round_range, noise_multiplier=high) for round_range in group.ranges)
    return replace(group, ranges=ranges, epsilon_accounted=spent)
