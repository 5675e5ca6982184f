"""A picture of stated and measured epsilon over the rounds."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from gdpfed.canaries.lower_bounds import EpsilonLowerBound
from gdpfed.canaries.measure import Measurement
from gdpfed.report.style import line_style, new_figure, new_panels, save, shared_legend, styled

PANEL_INCHES = (3.4, 3.0)
MOST_COLUMNS = 3
LINES = {
    "sums": ("stated: cohorts unknown", "measured: cohorts unknown"),
    "server": ("stated: against the server", "measured: against the server"),
    "everyone": ("stated: against everyone", "measured: against everyone"),
    "updates": ("stated: every update", "measured: every update"),
}


@styled
def epsilon_over_rounds(measurement: Measurement, path: Path) -> None:
    """Write one panel a group as PNG: lines for what is stated, points for what was measured."""
    groups = range(len(measurement.budgets))
    columns = min(MOST_COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    figure = new_figure(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    panels = new_panels(figure, len(groups), columns=columns)
    for group, axes in zip(groups, panels, strict=True):
        for number, (view, (stated, measured)) in enumerate(LINES.items()):
            ours = _of(measurement.figures, group, view)
            if not ours:
                continue
            rounds = [each.rounds for each in ours]
            colour = line_style(number)["color"]
            axes.plot(rounds, [each.stated for each in ours], color=colour, label=stated)
            axes.plot(
                rounds,
                [each.measured for each in ours],
                color=colour,
                linestyle="none",
                marker=line_style(number)["marker"],
                label=measured,
            )
        axes.axhline(measurement.budgets[group], color="black", linewidth=0.8, linestyle=":", label="budget")
        axes.set_title(f"group {group}: budget {measurement.budgets[group]:g}")
        axes.set_xlabel("round")
        axes.set_ylabel("epsilon")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)


def _of(figures: Sequence[EpsilonLowerBound], group: int, view: str) -> list[EpsilonLowerBound]:
    return [each for each in figures if each.group == group and each.view == view]
