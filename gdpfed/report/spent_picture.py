"""Draws how much of its privacy budget each data owner (party) has spent, run by run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from gdpfed.report.metric_display import COLOURS
from gdpfed.report.plots import new_figure, new_panels, save, shared_legend, styled
from gdpfed.report.spending import Spending

MOST_PANELS = 24
COLUMNS = 2
PANEL_INCHES, FRAME_INCHES, WIDTH_INCHES = 1.35, 0.4, 5.4
BAR_WIDTH = 0.7
FEWEST_PLACES, MOST_TICKS = 4, 8
EARLIER_OPACITY = 0.3


@styled
def draw_spent(spendings: Sequence[Spending], path: Path) -> None:
    """Draw as PNG a panel for each party, with a bar for each run, and the budget as a line.

    Of many parties the first are drawn.
    """
    shown = spendings[:MOST_PANELS]
    rows = -(-len(shown) // COLUMNS)
    figure = new_figure(WIDTH_INCHES, FRAME_INCHES + PANEL_INCHES * rows)
    panels = new_panels(figure, len(shown), columns=COLUMNS)
    for axes, spending in zip(panels, shown, strict=True):
        steps = spending.steps
        runs = list(range(1, len(steps) + 1))
        before = [step.before for step in steps]
        own = [step.after - step.before for step in steps]
        bar: dict[str, Any] = {"color": COLOURS[0], "width": BAR_WIDTH, "linewidth": 0}
        if any(before):
            axes.bar(runs, before, alpha=EARLIER_OPACITY, label="runs before", **bar)
        axes.bar(runs, own, bottom=before, label="this run", **bar)
        ends = [run - BAR_WIDTH / 2 for run in runs], [run + BAR_WIDTH / 2 for run in runs]
        axes.hlines([step.limit for step in steps], *ends, color=COLOURS[1], linewidth=2, label="budget")
        axes.set_title(f"{spending.party}: spent {steps[-1].after:.3g}", fontsize="small", loc="left")
        axes.set_ylim(0, 1.08 * max(max(step.limit, step.after) for step in steps))
        axes.set_xlim(0.4, max(len(steps), FEWEST_PLACES) + 0.6)
        axes.set_xticks(runs[:: -(-len(runs) // MOST_TICKS)])
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    for axes in panels[-COLUMNS:]:
        axes.set_xlabel("run")
    for axes in panels[::COLUMNS]:
        axes.set_ylabel("epsilon")
    shared_legend(figure, panels)
    save(figure, path)
