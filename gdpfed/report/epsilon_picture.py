"""Draws the metric of each run against its epsilon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from types import MappingProxyType

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gdpfed.report.comparison import Line
from gdpfed.report.metric_display import COLOURS, MetricDisplay, Spread
from gdpfed.report.plots import (
    STYLES,
    method_styles,
    new_figure,
    new_panels,
    save,
    shared_legend,
    styled,
)

EPSILON_PICTURE = "epsilon.png"
MOST_TICKS = 8


@dataclass(frozen=True)
class CostPoint:
    """A point in the plot of results against epsilon: one configuration's epsilons, result and error bar.

    `method`: its name, which has a colour. `budgets`: epsilon, the least, the mean over clients and the
    largest. `result`: the metric over the seeds, as it is shown. `ends`: of its 95 % interval, where a bar
    shows that in place of one standard deviation.
    """

    method: str
    budgets: tuple[float, float, float]
    result: Spread
    ends: tuple[float, float] | None = None

    @property
    def bar(self) -> tuple[float, float]:
        """How far the error bar goes below and above the result."""
        if self.ends is None:
            return (self.result.stddev or 0.0,) * 2
        low, high = self.ends
        return max(0.0, self.result.mean - low), max(0.0, high - self.result.mean)


def cost_points(
    lines: Sequence[Line],
    results: Sequence[Spread] | None = None,
    ends: Sequence[tuple[float, float]] | None = None,
) -> list[CostPoint]:
    """Return a point of the plot of results against epsilon for each evaluated configuration with privacy.

    `results`: in place of the lines' own, as they are shown. `ends`: of their intervals.
    """
    found = []
    shown = results or [each.final_result for each in lines]
    bars: Sequence[tuple[float, float] | None] = ends or [None for _ in lines]
    for line, result, own in zip(lines, shown, bars, strict=True):
        method = str(line.runs[0].settings["method"]["name"])
        groups = [group for group in line.runs[0].plan["groups"] if group["epsilon"]]
        clients = sum(group["clients"] for group in groups)
        if clients and not isnan(result.mean):
            epsilons = [group["epsilon"] for group in groups]
            mean = sum(group["epsilon"] * group["clients"] for group in groups) / clients
            found.append(CostPoint(method, (min(epsilons), mean, max(epsilons)), result, own))
    return found


def without_privacy(lines: Sequence[Line]) -> dict[str, Spread]:
    """Return, by label, the results of the configurations without privacy."""
    bare = [line for line in lines if not line.runs[0].plan["private"] and line.evaluated]
    return {f"{line.label}, without privacy": line.final_result for line in bare}


@styled
def draw_cost(
    points: Sequence[CostPoint],
    levels: Mapping[str, Spread],
    metric: str,
    path: Path,
    *,
    bands: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> None:
    """Draw results against epsilon as PNG: a curve for each method, a line for each result without privacy.

    A point is at the mean budget of the clients, with its interval or one standard deviation over the seeds;
    the thin line through it goes from the least to the largest budget. `levels`: results without an epsilon.
    `bands`: the intervals of some of these, by name.
    """
    figure = new_figure(6.4, 4.0)
    (axes,) = new_panels(figure, 1, columns=1)
    methods = list(dict.fromkeys(point.method for point in points))
    for style, method in zip(method_styles(methods), methods, strict=True):
        own = sorted((point for point in points if point.method == method), key=lambda each: each.budgets[1])
        means = [each.result.mean for each in own]
        axes.errorbar(
            [each.budgets[1] for each in own],
            means,
            yerr=list(zip(*(each.bar for each in own), strict=True)),
            capsize=2,
            label=method,
            **style,
        )
        ends = [each.budgets[0] for each in own], [each.budgets[2] for each in own]
        axes.hlines(means, *ends, color=style["color"], linewidth=0.8, alpha=0.5)
    for index, (name, level) in enumerate(levels.items()):
        colour = COLOURS[(index + 3) % len(COLOURS)]
        if name in bands:
            axes.axhspan(*bands[name], color=colour, alpha=0.12, linewidth=0)
        axes.axhline(
            level.mean,
            color=colour,
            linestyle=STYLES[(index + 1) % len(STYLES)],
            linewidth=1.0,
            label=name,
        )
    shown = MetricDisplay.of(metric)
    reached = [point.result.mean + sign * point.bar[max(sign, 0)] for point in points for sign in (-1, 1)]
    low, high = shown.axis([*reached, *(level.mean for level in levels.values())])
    axes.set_ylim(low, high)
    axes.set_ylabel(f"{shown.heading}, axis from {low:.4g} to {high:.4g}")
    axes.set_xscale("log")
    budgets = sorted({float(f"{each.budgets[end]:.3g}") for each in points for end in (0, 2)})
    ticks = budgets[:: -(-len(budgets) // MOST_TICKS)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("epsilon: mean over the clients; thin lines from the least to the largest budget")
    axes.grid(alpha=0.3)
    shared_legend(figure, [axes])
    save(figure, path)
