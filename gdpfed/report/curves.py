"""Accuracy over the rounds of several lines, each with its band over the seeds."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from gdpfed.report.plots import number_rounds
from gdpfed.report.spread import Spread
from gdpfed.report.style import BAND_OPACITY, line_style, markers_every


def draw_curves(axes: Axes, curves: Sequence[tuple[int, str, Sequence[Spread]]]) -> None:
    """Mean accuracy in percent after every round, and one standard deviation around it.

    Args:
        axes: where to draw.
        curves: index of the style, label and one figure a round, of every curve.
    """
    for index, label, spreads in curves:
        rounds = range(1, len(spreads) + 1)
        means = [spread.mean for spread in spreads]
        style = line_style(index)
        axes.plot(rounds, means, label=label, markevery=markers_every(len(means)), **style)
        below = [spread.mean - (spread.stddev or 0.0) for spread in spreads]
        above = [spread.mean + (spread.stddev or 0.0) for spread in spreads]
        axes.fill_between(rounds, below, above, color=style["color"], alpha=BAND_OPACITY, linewidth=0)
    number_rounds(axes)
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(bottom=0)
