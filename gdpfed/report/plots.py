"""Pictures of one run: its metric over the rounds, and the spent budget of every group."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.report.curves import draw_curves, number_rounds
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.report.style import (
    line_style,
    markers_every,
    method_styles,
    new_figure,
    new_panels,
    save,
    shared_legend,
    styled,
)
from gdpfed.runs.round_log import RoundLogEntry

SIZE_INCHES = (6.0, 3.6)


def _new_axes(title: str) -> tuple[Figure, Axes]:
    figure = new_figure(*SIZE_INCHES)
    (axes,) = new_panels(figure, 1, columns=1)
    axes.set_title(title)
    number_rounds(axes)
    return figure, axes


@styled
def accuracy_curve(
    records: Sequence[RoundLogEntry], method: str, title: str, path: Path, base_rate: float | None = None
) -> None:
    """Write the metric that is shown after every round as PNG, in the method's colour.

    Below an accuracy lies a line: the share of the most frequent class, ``base_rate``.
    """
    figure, axes = _new_axes(title)
    (style,) = method_styles([method])
    metric = records[-1].shown[0] if records else DEFAULT
    scaled = MetricDisplay.of(metric).scaled
    draw_curves(axes, [(style, method, [Spread.of([scaled(each.shown[1])]) for each in records])], metric)
    if base_rate is not None and metric == DEFAULT:
        axes.axhline(scaled(base_rate), color="black", linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=min(axes.get_ylim()[0], scaled(base_rate) - 2))
        axes.annotate("most frequent class", (1, scaled(base_rate)), fontsize="small", va="bottom")
    save(figure, path)


@styled
def budget_curve(
    records: Sequence[RoundLogEntry], budgets: Sequence[float | None], title: str, path: Path
) -> None:
    """Write the accounted epsilon of every group over the rounds, below its budget, as PNG."""
    figure, axes = _new_axes(title)
    rounds = [record.round for record in records]
    for index, budget in enumerate(budgets):
        if budget is None:
            continue
        spent = [record.spent_epsilon[index] for record in records]
        style = line_style(index)
        axes.plot(
            rounds,
            [float("nan") if value is None else value for value in spent],
            label=f"group {index}: spent, budget {budget:g}",
            markevery=markers_every(len(rounds)),
            **style,
        )
        axes.axhline(budget, color=style["color"], linewidth=0.8, alpha=0.6)
    if axes.lines:
        axes.set_ylim(bottom=0)
        shared_legend(figure, [axes])
    else:
        axes.text(0.5, 0.5, "no budgets: this method promises no privacy", ha="center")
    axes.set_ylabel("accounted epsilon")
    save(figure, path)
