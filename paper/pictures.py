"""Draws the paper's pictures as vector graphics, from the measured tables in the documents."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from gdpfed.report.metric_display import COLOURS
from gdpfed.report.plots import MARKERS, SETTINGS, new_figure, new_panels
from paper.tables import Measured

WIDTH_INCHES = 3.4
FIGURE = re.compile(r"-?[\d,]*\.?\d+")
DEMO = "results-the-demo-s-budgets-1-3-and-6-against-outsiders-and-against-everyone-digits"
GROWTH = "secagg-seconds-a-round-d-100-000-a-tenth-dropped"


def write_pictures(tables: Mapping[str, Measured], folder: Path) -> None:
    """Draw all pictures as SVG into a folder."""
    with rc_context({**SETTINGS, "font.size": 8, "axes.titlesize": 8}):
        _promises(tables[DEMO]).savefig(folder / "promises.svg")
        _growth(tables[GROWTH]).savefig(folder / "growth.svg")


def figures_in(cell: str) -> list[float]:
    """Return the numbers in a table cell such as ``89.7 ± 1.0``."""
    return [float(each.replace(",", "")) for each in FIGURE.findall(cell)]


def _promises(table: Measured) -> Figure:
    """Plot each method's test accuracy, for privacy against outsiders and everyone, with error bars."""
    figure = new_figure(WIDTH_INCHES, 0.24 * len(table.rows) + 0.9)
    (axes,) = new_panels(figure, 1, columns=1)
    names = [row[0] for row in table.rows]
    for column, against in enumerate(("outsiders", "everyone"), start=1):
        found = [figures_in(row[column]) for row in table.rows]
        axes.errorbar(
            [each[0] for each in found],
            [place + 0.2 * (2 * column - 3) for place in range(len(names))],
            xerr=[each[1] for each in found],
            fmt=MARKERS[column - 1],
            color=COLOURS[column - 1],
            capsize=2,
            label=f"against {against}",
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy (%)")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _growth(table: Measured) -> Figure:
    """Plot a client's and the server's seconds per round against the number of clients."""
    figure = new_figure(WIDTH_INCHES, 2.3)
    (axes,) = new_panels(figure, 1, columns=1)
    clients = _column(table, 0)
    for column, heading in enumerate(table.headings[1:], start=1):
        axes.plot(
            clients, _column(table, column), marker=MARKERS[column], color=COLOURS[column], label=heading
        )
    axes.set(xscale="log", yscale="log", xlabel="clients in the sum", ylabel="seconds a round")
    axes.set_xticks(clients, [f"{each:g}" for each in clients])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _column(table: Measured, number: int) -> Sequence[float]:
    return [figures_in(row[number])[0] for row in table.rows]
