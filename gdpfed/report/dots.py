"""Values with their spread as dots on a horizontal scale, one row for each name."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes

from gdpfed.report.metric_display import Spread
from gdpfed.report.style import COLOURS, MARKERS

DOT_HEIGHT_INCHES = 0.16
ROW_GAP_INCHES = 0.14
FRAME_HEIGHT_INCHES = 1.0
SPREAD_OF_ROW = 0.7
STRIPE_OPACITY = 0.05


@dataclass(frozen=True)
class Dots:
    """One kind of figure, a value a row.

    Attributes:
        label: for the legend.
        values: one a row; None leaves the row empty.
        hollow: an outline only, for figures that are not ours.
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
