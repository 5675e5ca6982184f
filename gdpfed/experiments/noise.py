"""Noise multipliers and Lambda: the published ones, those of the same search, and ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conf.experiment import Experiment
from conf.load import load
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.experiments.cells import Cell
from gdpfed.experiments.footnotes import Footnotes
from gdpfed.experiments.layout import dataset_label
from gdpfed.experiments.presentation import Presentation
from gdpfed.experiments.printed_search import as_printed
from gdpfed.methods import make_method
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.comparison import ABSENT
from gdpfed.report.dots import Dots, draw_dots, height_inches
from gdpfed.report.spread import Spread
from gdpfed.report.style import new_figure, new_panels, save, shared_legend, styled
from gdpfed.report.table import Table

PRINTED = "rdp, as printed"
COLUMNS = (PRINTED, "rdp", "pld")
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
    """One cell's plans by calibration, or why it has none, and what the paper prints."""

    cell: Cell
    plans: Mapping[str, PrivacyPlan | str]
    variances: Sequence[float] | None
    magnitude: float | None


def present_noise(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Plan every cell under every calibration."""
    planned = [_noise_cell(experiment, cell) for cell in cells]
    return Presentation(
        tables=[_table(experiment, name, planned) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, [row for each in planned for row in _figures(each)]),
        draw=partial(_draw, experiment, datasets, planned),
    )


def _noise_cell(experiment: Experiment, cell: Cell) -> NoiseCell:
    rdp = _plan_or_reason(cell, "rdp")
    plans = {
        PRINTED: rdp if isinstance(rdp, str) else as_printed(rdp),
        "rdp": rdp,
        "pld": _plan_or_reason(cell, "pld"),
    }
    published = experiment.published
    return NoiseCell(
        cell,
        plans,
        published.variances.get(cell.row, {}).get(cell.dataset),
        published.magnitude.get(cell.row, {}).get(cell.dataset),
    )


def _plan_or_reason(cell: Cell, accountant: str) -> PrivacyPlan | str:
    try:
        return make_method(load([*cell.overrides, f"privacy.accountant={accountant}"])).plan
    except (ConfigError, PrivacyError) as error:
        return str(error)


def _table(experiment: Experiment, dataset: str, planned: Sequence[NoiseCell]) -> Table:
    footnotes = Footnotes()
    own = [each for each in planned if each.cell.dataset == dataset]
    labels = [experiment.rows[each.cell.row].label for each in own]
    headings = [experiment.row_heading, "rates q (%)"]
    headings += [f"{quantity} {name}" for quantity in ("sigma²", "Lambda") for name in ("paper", *COLUMNS)]
    rows = [[label, *_row(each, footnotes)] for label, each in zip(labels, own, strict=True)]
    return Table(f"{experiment.title}, {dataset_label(dataset)}", headings, rows, footnotes.text())


def _row(planned: NoiseCell, footnotes: Footnotes) -> list[str]:
    plans = [planned.plans[name] for name in COLUMNS]
    reasons = [plan for plan in plans if isinstance(plan, str)]
    if reasons:
        return [footnotes.mark(reasons[0]), *[""] * (2 * len(COLUMNS) + 2)]
    sound = [plan for plan in plans if not isinstance(plan, str)]
    return [
        _lines([100 * group.sampling_rate for group in sound[0].groups]),
        _lines(planned.variances),
        *(_lines(variances(plan)) for plan in sound),
        ABSENT if planned.magnitude is None else f"{planned.magnitude:.2f}",
        *(f"{plan.noise_magnitude:.3f}" for plan in sound),
    ]


def variances(plan: PrivacyPlan) -> list[float]:
    """sigma_m^2 of every group."""
    return [group.noise_variance_multiplier for group in plan.groups]


def _lines(figures: Sequence[float] | None) -> str:
    return ABSENT if figures is None else "\n".join(f"{figure:.2f}" for figure in figures)


def _figures(planned: NoiseCell) -> Iterator[list[str]]:
    for name, plan in planned.plans.items():
        if isinstance(plan, str):
            continue
        groups = list(enumerate(variances(plan)))
        published = planned.variances or (None,) * len(groups)
        for (group, variance), figure in zip(groups, published, strict=True):
            yield _figure(planned.cell, str(group), "sigma^2", name, variance, figure)
        yield _figure(planned.cell, "", "Lambda", name, plan.noise_magnitude, planned.magnitude)


def _figure(
    cell: Cell, group: str, quantity: str, calibration: str, value: float, published: float | None
) -> list[str]:
    printed, deviation = "", ""
    if published is not None:
        printed, deviation = f"{published:g}", f"{100 * (value / published - 1):.2f}"
    return [cell.dataset, cell.row, group, quantity, calibration, f"{value:.5f}", printed, deviation]


@styled
def _draw(experiment: Experiment, datasets: Sequence[str], planned: Sequence[NoiseCell], path: Path) -> None:
    """Lambda under every calibration, a panel a data set."""
    height = height_inches(len(experiment.rows), kinds=len(COLUMNS) + 1)
    figure = new_figure(8.0 if len(datasets) > 1 else 6.4, height * -(-len(datasets) // 2))
    panels = new_panels(figure, len(datasets), columns=2, sharey=True)
    for axes, dataset in zip(panels, datasets, strict=True):
        own = [each for each in planned if each.cell.dataset == dataset]
        kinds = [Dots(name, [_magnitude(each.plans[name]) for each in own]) for name in COLUMNS]
        printed = [None if each.magnitude is None else Spread.of([each.magnitude]) for each in own]
        if any(printed):
            kinds.append(Dots("paper", printed, hollow=True))
        axes.set_title(dataset_label(dataset))
        draw_dots(axes, [choice.label for choice in experiment.rows.values()], kinds, "noise magnitude Λ")
        axes.set_xlim(left=0)
    shared_legend(figure, panels)
    save(figure, path)


def _magnitude(plan: PrivacyPlan | str) -> Spread | None:
    return None if isinstance(plan, str) else Spread.of([plan.noise_magnitude])
