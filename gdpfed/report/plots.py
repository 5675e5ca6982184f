"""Draws pictures of metrics and budgets, whose lines can be told apart without colour."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from io import BytesIO
from math import isnan
from pathlib import Path
from typing import Any, ParamSpec

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gdpfed.files import save_whole
from gdpfed.learning.labels.classes import DEFAULT
from gdpfed.methods import METHODS
from gdpfed.report.metric_display import COLOURS, MetricDisplay, Spread
from gdpfed.runs.round_log import RoundLogEntry, last_evaluated

P = ParamSpec("P")

# With colours, line styles and markers tell lines apart in grey, too.
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "d", "p", "h")
OTHER_METHODS = ("#999933", "#44AA99", "#332288", "#882255")
BAND_OPACITY = 0.15
DOTS_PER_INCH = 200
MARKERS_A_CURVE = 8
LEGEND_HANDLE_INCHES, LETTER_INCHES, LEGEND_ROW_INCHES = 0.75, 0.08, 0.2
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
}


def styled(draw: Callable[P, None]) -> Callable[P, None]:
    """Wrap a drawing function: set the matplotlib style for each call, and restore the settings after it."""

    @wraps(draw)
    def drawn(*arguments: P.args, **named: P.kwargs) -> None:
        with rc_context(SETTINGS):
            draw(*arguments, **named)

    return drawn


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure whose layout leaves room for labels and legends."""
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def new_panels(figure: Figure, count: int, *, columns: int, **sharing: Any) -> list[Axes]:
    """Add ``count`` panels to a figure, in rows of ``columns``."""
    rows = -(-count // columns)
    grid = figure.subplots(rows, min(count, columns), squeeze=False, **sharing)
    panels = list(grid.flat)
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def line_style(index: int) -> dict[str, Any]:
    """Return colour, dash and marker for curve number ``index`` in a picture."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[index % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def method_styles(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return colour, dash and marker for each curve of a picture; curves of one method share their colour.

    Of several curves of one method the further ones have other dashes and markers in its colour; methods
    without a curve style have colours of their own, in the order in which they come.
    """
    known = {name: METHODS.get(name).curve for name in set(methods) & set(METHODS.names())}
    others = [name for name in dict.fromkeys(methods) if known.get(name) is None]
    styles = []
    for place, name in enumerate(methods):
        again = list(methods[:place]).count(name)
        curve = known.get(name)
        if curve is not None:
            colour, dash, marker = curve
        else:
            index = others.index(name)
            colour = OTHER_METHODS[index % len(OTHER_METHODS)]
            dash, marker = STYLES[index % len(STYLES)], MARKERS[-1 - index % len(MARKERS)]
        if again:
            dash = STYLES[(STYLES.index(dash) + again) % len(STYLES)]
            marker = MARKERS[(MARKERS.index(marker) + again) % len(MARKERS)]
        styles.append({"color": colour, "linestyle": dash, "marker": marker})
    return styles


def markers_every(points: int) -> int:
    """Return n so that every n-th data point of a curve gets a marker."""
    return max(1, points // MARKERS_A_CURVE)


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend below all panels of a picture, with each label once."""
    entries = [each for panel in panels for each in zip(*panel.get_legend_handles_labels(), strict=True)]
    by_label = {label: handle for handle, label in reversed(entries)}
    labels = list(dict.fromkeys(label for _, label in entries))
    if not labels:
        return
    entry_width = LEGEND_HANDLE_INCHES + LETTER_INCHES * max(map(len, labels))
    columns = min(len(labels), max(1, int(figure.get_figwidth() / entry_width)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_INCHES * rows)
    handles = [by_label[label] for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file that only its owner can read.

    Raises RunError: the file system refuses; the old picture is untouched.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, format="png")
    save_whole(path, drawn.getvalue())


DOT_HEIGHT_INCHES = 0.16
ROW_GAP_INCHES = 0.14
FRAME_HEIGHT_INCHES = 1.0
SPREAD_OF_ROW = 0.7
STRIPE_OPACITY = 0.05


@dataclass(frozen=True)
class Dots:
    """The values of one quantity in a dot plot, one value for each row.

    `label`: for the legend. `values`: one a row; None leaves the row empty. `hollow`: an outline only, for
    figures that are not ours.
    """

    label: str
    values: Sequence[Spread | None]
    hollow: bool = field(default=False)


def height_inches(rows: int, *, kinds: int = 1) -> float:
    """Return the height of a dot plot for this number of rows and of quantities."""
    return FRAME_HEIGHT_INCHES + (ROW_GAP_INCHES + DOT_HEIGHT_INCHES * kinds) * rows


def stddev_of(spread: Spread) -> float | None:
    """Return the standard deviation as the length of an error bar; None for a single value."""
    return spread.stddev


def error_bars(
    spreads: Sequence[Spread], length: Callable[[Spread], float | None] = stddev_of
) -> list[float] | None:
    """Return the lengths of error bars; None if no value has a standard deviation."""
    if all(length(spread) is None for spread in spreads):
        return None
    return [length(spread) or 0.0 for spread in spreads]


def draw_dots(
    axes: Axes,
    names: Sequence[str],
    kinds: Sequence[Dots],
    unit: str,
    length: Callable[[Spread], float | None] = stddev_of,
) -> None:
    """Draw a dot plot: a row for each name, a marker for each quantity, with error bars."""
    for index, kind in enumerate(kinds):
        offset = SPREAD_OF_ROW * ((index + 0.5) / len(kinds) - 0.5)
        points = [(row + offset, each) for row, each in enumerate(kind.values) if each is not None]
        axes.errorbar(
            [spread.mean for _, spread in points],
            [height for height, _ in points],
            xerr=error_bars([spread for _, spread in points], length),
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
    axes: Axes,
    curves: Sequence[tuple[Mapping[str, Any], str, Sequence[Spread]]],
    metric: str = DEFAULT,
    beside: Sequence[float] = (),
) -> None:
    """Draw a metric's mean after every round, with a band of one standard deviation.

    The axis goes from the lowest to the highest of all curves, and its label says so. `axes`: where to draw.
    `curves`: style, label and one figure a round, of every curve; not a number where a round was not
    evaluated. `metric`: by name.
    `beside`: what else the axis has to show, scaled.
    """
    drawn = list(beside)
    for style, label, spreads in curves:
        evaluated = [(number, each) for number, each in enumerate(spreads, start=1) if not isnan(each.mean)]
        rounds = [number for number, _ in evaluated]
        spreads = [each for _, each in evaluated]
        means = [spread.mean for spread in spreads]
        axes.plot(rounds, means, label=label, markevery=markers_every(len(means)), clip_on=False, **style)
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
    """Label the horizontal axis with whole rounds."""
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
    """Draw as PNG the displayed metric after every round, in the method's colour.

    Below an accuracy lies a line: the share of the most frequent class, ``base_rate``.
    """
    figure, axes = _new_axes(title)
    (style,) = method_styles([method])
    metric = last_evaluated(records).shown[0] if records else DEFAULT
    scaled = MetricDisplay.of(metric).scaled
    curve = [Spread.of([scaled(record.shown[1])]) for record in records]
    beside = [scaled(base_rate)] if base_rate is not None and metric == DEFAULT else []
    draw_curves(axes, [(style, method, curve)], metric, beside)
    if records and not any(record.evaluated for record in records):
        axes.text(0.5, 0.5, "not evaluated on the server", ha="center", transform=axes.transAxes)
    if base_rate is not None and beside:
        axes.axhline(scaled(base_rate), color="black", linewidth=0.8, linestyle=":", clip_on=False)
        axes.annotate("most frequent class", (1, scaled(base_rate)), fontsize="small", va="bottom")
    save(figure, path)


@styled
def budget_curve(
    records: Sequence[RoundLogEntry], budgets: Sequence[float | None], title: str, path: Path
) -> None:
    """Draw as PNG how epsilon of every group grows round by round, with its budget as a line."""
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
