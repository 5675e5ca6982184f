"""Pictures of how a cost grows with a size."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from matplotlib.ticker import NullLocator

from gdpfed.report.style import line_style, new_figure, new_panels, save, shared_legend, styled

# A vertical axis is logarithmic if its largest value is this many times the smallest.
LOGARITHMIC_FROM = 3
HEADROOM = 1.15
Lines = Mapping[str, Sequence[tuple[float, float]]]


@styled
def draw_growth(path: Path, size: str, panels: Mapping[str, Lines]) -> None:
    """Draw curves over a size on a logarithmic axis: one panel for each quantity, one line for each label."""
    figure = new_figure(4.0 * len(panels) + 1, 3.4)
    all_axes = new_panels(figure, len(panels), columns=len(panels))
    for axes, (quantity, lines) in zip(all_axes, panels.items(), strict=True):
        for index, (label, points) in enumerate(lines.items()):
            axes.plot(*zip(*points, strict=True), label=label, **line_style(index))
        sizes = sorted({point for point, _ in chain.from_iterable(lines.values())})
        heights = [height for _, height in chain.from_iterable(lines.values())]
        axes.set(xscale="log", xlabel=size, ylabel=quantity)
        axes.set_xticks(sizes, [f"{each:,.0f}" for each in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        if max(heights) > LOGARITHMIC_FROM * min(heights):
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, HEADROOM * max(heights))
        axes.grid(alpha=0.3)
    shared_legend(figure, all_axes)
    save(figure, path)
