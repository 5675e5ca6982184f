"""Accuracy over the rounds of several lines, each with its band over the seeds."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gdpfed.report.spread import Spread
from gdpfed.report.style import BAND_OPACITY, markers_every

STEP_PERCENT = 5


def draw_curves(axes: Axes, curves: Sequence[tuple[Mapping[str, Any], str, Sequence[Spread]]]) -> None:
    """Mean accuracy in percent after every round, and one standard deviation around it.

    The axis goes from the lowest to the highest of all curves, and its label says so.

    Args:
        axes: where to draw.
        curves: style, label and one figure a round, of every curve.
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
    low, high = accuracy_range(drawn)
    axes.set_ylim(low, high)
    axes.set_ylabel(f"test accuracy (%), axis from {low} to {high}")


def accuracy_range(percents: Sequence[float]) -> tuple[int, int]:
    """The multiples of five around some accuracies in percent, within 0 and 100; all of it for none."""
    if not percents:
        return 0, 100
    low = STEP_PERCENT * floor(max(0.0, min(percents)) / STEP_PERCENT)
    high = STEP_PERCENT * ceil(min(100.0, max(percents)) / STEP_PERCENT)
    return (low, high) if low < high else (max(0, low - STEP_PERCENT), min(100, high + STEP_PERCENT))


def number_rounds(axes: Axes) -> None:
    """A horizontal axis of rounds, whole numbers."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
