"""The style of all pictures: sizes, colours, and line styles that are told apart without colour."""

from collections.abc import Callable, Sequence
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gdpfed.files import save_whole
from gdpfed.methods import METHODS

P = ParamSpec("P")

# Okabe and Ito's colours, told apart by the colour-blind; line styles and markers tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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
    """Draw a whole picture in this style, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def drawn(*arguments: P.args, **named: P.kwargs) -> None:
        with rc_context(SETTINGS):
            draw(*arguments, **named)

    return drawn


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure whose layout makes room for labels and legends."""
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def new_panels(figure: Figure, count: int, *, columns: int, **sharing: Any) -> list[Axes]:
    """``count`` panels in rows of ``columns``, in reading order."""
    rows = -(-count // columns)
    grid = figure.subplots(rows, min(count, columns), squeeze=False, **sharing)
    panels = list(grid.flat)
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and marker of the ``index``-th curve."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": STYLES[index % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def method_styles(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, dash and marker of curves by their methods.

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
    """Every how many points of a curve a marker tells it apart without hiding it."""
    return max(1, points // MARKERS_A_CURVE)


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, every label once, in room that is added below them."""
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
    """Write a figure as PNG, for its owner alone to read.

    Raises RunError: the file system refuses; the old picture is untouched.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, format="png")
    save_whole(path, drawn.getvalue())
