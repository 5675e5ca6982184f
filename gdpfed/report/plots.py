"""Pictures of a run: accuracy over rounds, and what every group has spent of its budget."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gdpfed.report.records import RoundRecord

# Okabe and Ito's colours, told apart by the colour-blind; line styles tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
SIZE_INCHES = (6.0, 3.6)


def _finish(figure: Figure, title: str, path: Path) -> None:
    axes = figure.axes[0]
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def accuracy_curve(records: Sequence[RoundRecord], title: str, path: Path) -> None:
    """Write the test accuracy after every round as PNG."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES)
    rounds = [record.round for record in records]
    axes.plot(rounds, [100 * record.accuracy for record in records], color=COLOURS[0], marker=".")
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(0, 100)
    _finish(figure, title, path)


def budget_curve(
    records: Sequence[RoundRecord], budgets: Sequence[float | None], title: str, path: Path
) -> None:
    """Write the accounted epsilon of every group over the rounds, below its budget, as PNG."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES)
    rounds = [record.round for record in records]
    for index, budget in enumerate(budgets):
        if budget is None:
            continue
        colour = COLOURS[index % len(COLOURS)]
        spent = [record.spent_epsilon[index] for record in records]
        axes.plot(
            rounds,
            [float("nan") if value is None else value for value in spent],
            color=colour,
            linestyle=STYLES[index % len(STYLES)],
            label=f"group {index}: spent, budget {budget:g}",
        )
        axes.axhline(budget, color=colour, linewidth=0.8, alpha=0.6)
    if axes.lines:
        axes.set_ylim(0, 1.35 * max(budget for budget in budgets if budget is not None))
        axes.legend(loc="upper center", ncols=2, fontsize="small")
    else:
        axes.text(0.5, 0.5, "no budgets: this method promises no privacy", ha="center")
    axes.set_ylabel("accounted epsilon")
    _finish(figure, title, path)
