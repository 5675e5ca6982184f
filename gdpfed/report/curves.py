"""A metric over the rounds of several lines, each with its band over the seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gdpfed.learning.training.evaluation_metrics import DEFAULT
from gdpfed.report.metric_display import MetricDisplay, Spread
from gdpfed.report.style import BAND_OPACITY, markers_every


def draw_curves(
    axes: Axes, curves: Sequence[tuple[Mapping[str, Any], str, Sequence[Spread]]], metric: str = DEFAULT
) -> None:
    """Mean of a metric after every round, as it is shown, and one standard deviation around it.

    The axis goes from the lowest to the highest of all curves, and its label says so.

    Args:
        axes: where to draw.
        curves: style, label and one figure a round, of every curve.
        metric: by name.
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
