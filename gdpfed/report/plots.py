"""Pictures of runs: metrics over the rounds, spent budgets, and values with their spread as dots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.report.style import (
    BAND_OPACITY,
    COLOURS,
    MARKERS,
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

DOT_HEIGHT_INCHES = 0.16
ROW_GAP_INCHES = 0.14
FRAME_HEIGHT_INCHES = 1.0
SPREAD_OF_ROW = 0.7
STRIPE_OPACITY = 0.05


@dataclass(frozen=True)
class Dots:
    """One kind of figure, a value a row.

    `label`: for the legend. `values`: one a row; None leaves the row empty. `hollow`: an outline only, for
    figures that are not ours.
    """

    label: str
    values: Sequence[Spread | None]
    hollow: bool = field(default=False)


def height_inches(rows: int, *, kinds: int = 1) -> float:
    """Return the height of a picture with so many rows, and so many figures in each."""
    return FRAME_HEIGHT_INCHES + (ROW_GAP_INCHES + DOT_HEIGHT_INCHES * kinds) * rows


def error_bars(spreads: Sequence[Spread]) -> list[float] | None:
    """One standard deviation each; None, and no bars, where every figure is a single value."""
    if all(spread.stddev is None for spread in spreads):
        return None
    return [spread.stddev or 0.0 for spread in spreads]


def draw_dots(axes: Axes, names: Sequence[str], kinds: Sequence[Dots], unit: str) -> None:
    """One row a name from the top down, one marker a kind; bars of one standard deviation."""
    for index, kind in enumerate(kinds):
        offset = SPREAD_OF_ROW * ((index + 0.5) / len(kinds) - 0.5)
        points = [(row + offset, each) for row, each in enumerate(kind.values) if each is not None]
        axes.errorbar(
            [spread.mean for _, spread in points],
            [height for height, _ in points],
            xerr=error_bars([spread for _, spread in points]),
            fmt=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markerfacecolor="none" if kind.hollow else COLOURS[index % len(COLOURS)],
            capsize=2,
            clip_on=False,
            label=kind.label,
        )
    for row in range(1, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=STRIPE_OPACITY, linewidth=0)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(unit)
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(axis="y", length=0)


def draw_curves(
    axes: Axes, curves: Sequence[tuple[Mapping[str, Any], str, Sequence[Spread]]], metric: str = DEFAULT
) -> None:
    """Mean of a metric after every round, as it is shown, and one standard deviation around it.

    The axis goes from the lowest to the highest of all curves, and its label says so. `axes`: where to draw.
    `curves`: style, label and one figure a round, of every curve. `metric`: by name.
    """
    drawn: list[float] = []
    for style, label, spreads in curves:
        rounds = range(1, len(spreads) + 1)
        means = [spread.mean for spread in spreads]
        axes.plot(rounds, means, label=label, markevery=markers_every(len(means)), **style)
        below = [spread.mean - (spread.stddev or 0.0) for spread in spreads]
        above = [spread.mean + (spread.stddev or 0.0) for spread in spreads]
        axes.fill_between(rounds, below, above, color=style["color"], alpha=BAND_OPACITY, linewidth=0)
        drawn += [*below, *above]
    number_rounds(axes)
    shown = MetricDisplay.of(metric)
    low, high = shown.axis(drawn)
    axes.set_ylim(low, high)
    axes.set_ylabel(f"{shown.heading}, axis from {low:.4g} to {high:.4g}")


def number_rounds(axes: Axes) -> None:
    """A horizontal axis of rounds, whole numbers."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


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


@styled
def cohort_curve(records: Sequence[RoundLogEntry], path: Path) -> None:
    """Write how many clients were asked in every round, and how many updates were summed, as PNG."""
    figure, axes = _new_axes("")
    rounds = [record.round for record in records]
    for index, (label, sizes) in enumerate(
        (
            ("asked", [sum(record.cohort_sizes) for record in records]),
            ("in the sums", [sum(record.survivors) for record in records]),
        )
    ):
        axes.plot(rounds, sizes, label=label, markevery=markers_every(len(rounds)), **line_style(index))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("clients")
    shared_legend(figure, [axes])
    save(figure, path)


@styled
def phase_areas(records: Sequence[RoundLogEntry], path: Path) -> None:
    """Write the seconds of every round, phase above phase, as PNG."""
    figure, axes = _new_axes("")
    phases = list(dict.fromkeys(name for record in records for name in record.seconds if name != "total"))
    seconds = [[record.seconds.get(name, 0.0) for record in records] for name in phases]
    axes.stackplot([record.round for record in records], *seconds, labels=phases, colors=COLOURS)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("seconds")
    shared_legend(figure, [axes])
    save(figure, path)
