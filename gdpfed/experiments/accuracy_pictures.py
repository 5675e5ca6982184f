"""Pictures of trained cells: final accuracies as dots or over the columns, or accuracy over the rounds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from conf.experiment import Experiment
from gdpfed.experiments.accuracy import published_accuracy
from gdpfed.experiments.layout import dataset_label
from gdpfed.experiments.outcomes import Outcome
from gdpfed.report.curves import draw_curves
from gdpfed.report.dots import Dots, draw_dots, error_bars, height_inches
from gdpfed.report.spread import Spread
from gdpfed.report.style import line_style, new_figure, new_panels, save, shared_legend, styled

PANEL_WIDTH_INCHES = 3.4
PANEL_HEIGHT_INCHES = 2.7
PANELS_A_ROW = 2
ACCURACY = "test accuracy (%)"
DODGE = 0.03

Lines = Mapping[tuple[str, str, str], Outcome]
DrawPanel = Callable[[Axes, Experiment, str, Lines], None]


def accuracy_picture(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], path: Path
) -> None:
    """Final accuracies, a panel a data set: over the columns, or a row a choice beside the published ones."""
    if experiment.columns:
        _panels(experiment, datasets, outcomes, path, _over_columns, PANEL_HEIGHT_INCHES)
    else:
        height = height_inches(len(experiment.rows), kinds=2)
        _panels(experiment, datasets, outcomes, path, _dots, height)


def convergence_picture(
    experiment: Experiment, datasets: Sequence[str], outcomes: Sequence[Outcome], path: Path
) -> None:
    """Accuracy over the rounds with its band over the seeds, a panel a data set."""
    _panels(experiment, datasets, outcomes, path, _curves, PANEL_HEIGHT_INCHES)


@styled
def _panels(
    experiment: Experiment,
    datasets: Sequence[str],
    outcomes: Sequence[Outcome],
    path: Path,
    draw: DrawPanel,
    height: float,
) -> None:
    """One panel for every data set that has anything to show."""
    shown = [name for name in datasets if any(o.finished for o in outcomes if o.cell.dataset == name)]
    columns = min(PANELS_A_ROW, len(shown))
    width = PANEL_WIDTH_INCHES * max(columns, 1) + (2.4 if columns == 1 else 0.6)
    figure = new_figure(width, height * -(-len(shown) // columns))
    panels = new_panels(figure, len(shown), columns=columns, sharey=draw is _dots)
    by_place = {outcome.cell.place: outcome for outcome in outcomes}
    for axes, name in zip(panels, shown, strict=True):
        axes.set_title(dataset_label(name))
        draw(axes, experiment, name, by_place)
    shared_legend(figure, panels)
    save(figure, path)


def _dots(axes: Axes, experiment: Experiment, dataset: str, outcomes: Lines) -> None:
    ours = [_accuracy(outcomes[dataset, row, ""]) for row in experiment.rows]
    published = [published_accuracy(experiment, dataset, row, "") for row in experiment.rows]
    kinds = [Dots("this code", ours)]
    if any(published):
        printed = [None if figure is None else Spread.of([figure]) for figure in published]
        kinds.append(Dots("paper", printed, hollow=True))
    draw_dots(axes, [choice.label for choice in experiment.rows.values()], kinds, ACCURACY)


def _over_columns(axes: Axes, experiment: Experiment, dataset: str, outcomes: Lines) -> None:
    for index, (row, choice) in enumerate(experiment.rows.items()):
        spreads = [_accuracy(outcomes[dataset, row, column]) for column in experiment.columns]
        shift = DODGE * (index - (len(experiment.rows) - 1) / 2)
        points = [(place + shift, each) for place, each in enumerate(spreads) if each is not None]
        axes.errorbar(
            [place for place, _ in points],
            [spread.mean for _, spread in points],
            yerr=error_bars([spread for _, spread in points]),
            capsize=2,
            elinewidth=0.8,
            label=choice.label,
            **line_style(index),
        )
    labels = [column.label for column in experiment.columns.values()]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel(experiment.column_heading)
    axes.set_ylabel(ACCURACY)
    axes.grid(axis="y", alpha=0.3)


def _curves(axes: Axes, experiment: Experiment, dataset: str, outcomes: Lines) -> None:
    curves = []
    for index, (row, choice) in enumerate(experiment.rows.items()):
        line = outcomes[dataset, row, ""].line
        if line is not None:
            curves.append((index, choice.label, line.accuracies()))
    draw_curves(axes, curves)


def _accuracy(outcome: Outcome) -> Spread | None:
    return outcome.line.final_accuracy if outcome.line else None
