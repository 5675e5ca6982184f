"""Pictures of one game of FedPCS, and experiments on many games, without training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gdpfed.errors import InputError
from gdpfed.extras.experiments.cells import Cell
from gdpfed.extras.experiments.definitions import Experiment
from gdpfed.extras.experiments.presentation import Footnotes, Presentation
from gdpfed.extras.fedpcs.fedpcs import FedPCS
from gdpfed.extras.fedpcs.game.mean_field import TOLERANCE, spent_in_round
from gdpfed.extras.fedpcs.game.server_cost import ServerCost
from gdpfed.methods import make_method
from gdpfed.report.console import Table
from gdpfed.report.metric_display import dataset_label
from gdpfed.report.plots import line_style, markers_every, new_figure, new_panels, save, shared_legend, styled

MOST_PATHS = 100
PATH_OPACITY = 0.35


@styled
def draw_game(method: FedPCS, path: Path) -> None:
    """Draw a game's budgets, convergence and welfare as PNG."""
    welfare = method.equilibrium.welfare()
    figure = new_figure(9.0 if welfare else 6.4, 2.9)
    panels = new_panels(figure, 3 if welfare else 2, columns=3)

    # The budgets of at most a hundred clients over the rounds, and the mean of all clients.
    budgets, paths = method.spending.budgets, panels[0]
    rounds = np.arange(1, len(budgets) + 1)
    order = np.argsort(budgets[0], kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, MOST_PATHS).astype(int))]
    paths.plot(rounds, budgets[:, shown], color="#888888", linewidth=0.7, alpha=PATH_OPACITY)
    paths.plot([], [], color="#888888", linewidth=0.7, label="one client")
    style = line_style(0) | {"markevery": markers_every(len(rounds))}
    paths.plot(rounds, budgets.mean(axis=1), label="mean of all", **style)
    paths.set_xlabel("round")
    paths.set_ylabel("zCDP of a round")

    convergence = panels[1]
    changes = np.abs(np.diff(method.equilibrium.announced, axis=0)).max(axis=1)
    style = line_style(1) | {"markevery": markers_every(len(changes))}
    # A mean that stays exactly has no place on a logarithmic axis.
    drawn = np.maximum(changes, 1e-12)
    convergence.plot(np.arange(1, len(changes) + 1), drawn, label="change of the mean", **style)
    convergence.axhline(TOLERANCE, color="#888888", linestyle=":", label="it stays")
    convergence.set_yscale("log")
    convergence.set_xlabel("announcement")
    convergence.set_ylabel("largest change of a round's mean")

    if welfare:
        curves = {
            "welfare of the game": [each.played for each in welfare],
            "of a posted price": [each.attainable for each in welfare],
        }
        for index, (label, values) in enumerate(curves.items()):
            style = line_style(2 + index) | {"markevery": markers_every(len(welfare))}
            panels[2].plot(np.arange(1, len(welfare) + 1), values, label=label, **style)
        panels[2].set_xlabel("round")
        panels[2].set_ylabel("welfare of a round")
    for axes in panels:
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)


FIGURE_HEADINGS = ("dataset", "row", "quantity", "value")
PAPER_SCALE = 1.0


@dataclass(frozen=True)
class Found:
    """The results of one game that an experiment shows: numbers for a table row, and a curve.

    `figures`: by their headings, for the table. `curve`: over announcements or rounds, from 1.
    """

    figures: Mapping[str, float]
    curve: Sequence[float]


@dataclass(frozen=True)
class Kind:
    """A quantity of a game that an experiment shows: its function, and labels of axes."""

    find: Callable[[FedPCS], Found]
    x_label: str
    y_label: str
    logarithmic: bool = False


def _mean_field(method: FedPCS) -> Found:
    announced = method.equilibrium.announced
    changes = np.abs(np.diff(announced, axis=0)).max(axis=1)
    below = np.flatnonzero(changes < TOLERANCE)
    figures = {
        "announcements": float(below[0] + 1) if len(below) else float("nan"),
        "mean, round 1": float(announced[-1, 0]),
        "mean, last round": float(announced[-1, -1]),
        "cv of x, round 1": _spread(method, 0),
        "cv of x, round 2": _spread(method, 1),
        "cv of x, last round": _spread(method, -1),
    }
    return Found(figures, changes.tolist())


def _spread(method: FedPCS, round_index: int) -> float:
    drawn = method.equilibrium.draw_probabilities[round_index]
    return float(drawn.std() / drawn.mean())


def _welfare(method: FedPCS) -> Found:
    rounds = method.equilibrium.welfare()
    if not rounds:
        raise InputError(
            "welfare needs every client's aversion, which method.types=clients leaves with the "
            "nodes: use method.types=configuration"
        )
    last = rounds[-1]
    figures = {
        "game": last.played,
        "attainable, posted price": last.attainable,
        "all at least": last.at_least,
        "all at highest": last.at_highest,
        "printed optimum": last.unclipped,
    }
    return Found(figures, [each.played / each.attainable for each in rounds])


def _server_cost(method: FedPCS) -> Found:
    declared, rewards = method.declared, method.equilibrium.rewards
    cost = ServerCost(
        weight=method.config.method.server_weight,
        scale=PAPER_SCALE,
        shares=declared.shares,
        examples=declared.record_counts,
    )
    budgets = method.spending.budgets / method.config.method.budget_scale
    by_round = [
        cost.of_round(t, method.inclusions[t], budgets[t], float(rewards[t])) for t in range(len(budgets))
    ]
    figures = {
        "cost": float(np.sum(by_round)),
        "paid": float(method.expected_payments.sum()),
        "expected zCDP": float(method.spending.expected_totals().sum()),
    }
    return Found(figures, by_round)


def _caps(method: FedPCS) -> Found:
    sizes, budgets = method.equilibrium.cohort_sizes, method.equilibrium.budgets
    first, last = method.config.method.caps or [np.nan, np.nan]
    caps = np.linspace(first, last, len(budgets))
    spent = np.array([spent_in_round(own, size) for own, size in zip(budgets, sizes.tolist(), strict=True)])
    shares = 100 * sizes / budgets.shape[1]
    figures = {
        "clients, round 1 (%)": float(shares[0]),
        "clients, last round (%)": float(shares[-1]),
        "of the caps spent (%)": float(100 * spent.sum() / caps.sum()),
        "random at least, of the caps (%)": float(
            100 * (method.config.method.least_budget * sizes).sum() / caps.sum()
        ),
    }
    return Found(figures, shares.tolist())


KINDS: Mapping[str, Kind] = {
    "mean_field": Kind(_mean_field, "announcement", "largest change of a mean budget", logarithmic=True),
    "welfare": Kind(_welfare, "round", "welfare, of what is attainable"),
    "server_cost": Kind(_server_cost, "round", "cost of the server"),
    "caps": Kind(_caps, "round", "clients sampled (%)"),
}

Findings = Sequence[tuple[Cell, Found | str]]


def present_games(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Solve the game of every table cell of an experiment; return tables and a picture of one quantity."""
    kind = KINDS[experiment.quantity]
    findings = list[tuple[Cell, Found | str]]()
    for cell in cells:
        try:
            method = make_method(cell.config)
        except InputError as error:
            findings.append((cell, str(error)))
            continue
        if isinstance(method, FedPCS):
            findings.append((cell, kind.find(method)))
        else:
            findings.append((cell, f"method={method.name} plays no game"))
    rows = [
        [cell.dataset, cell.row, name, f"{value:.8g}"]
        for cell, found in findings
        if isinstance(found, Found)
        for name, value in found.figures.items()
    ]
    return Presentation(
        tables=[_table(experiment, name, findings) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, rows),
        draw=partial(_draw, experiment, kind, datasets, findings),
    )


def _table(experiment: Experiment, dataset: str, findings: Findings) -> Table:
    footnotes = Footnotes()
    own = [(cell, found) for cell, found in findings if cell.dataset == dataset]
    headings = next((list(found.figures) for _, found in own if isinstance(found, Found)), [])
    rows = []
    for cell, found in own:
        if isinstance(found, str):
            cells = [footnotes.mark(found), *[""] * max(0, len(headings) - 1)]
        else:
            cells = [f"{value:.5g}" for value in found.figures.values()]
        rows.append([experiment.rows[cell.row].label, *cells])
    title = f"{experiment.title}, {dataset_label(dataset)}"
    return Table(title, [experiment.row_heading, *headings], rows, footnotes.text())


@styled
def _draw(
    experiment: Experiment, kind: Kind, datasets: Sequence[str], findings: Findings, path: Path
) -> None:
    """Draw the curves of planned games: one panel for each data set, one curve for each table row."""
    figure = new_figure(6.4 if len(datasets) == 1 else 8.0, 3.2 * -(-len(datasets) // 2))
    panels = new_panels(figure, len(datasets), columns=2)
    for axes, dataset in zip(panels, datasets, strict=True):
        axes.set_title(dataset_label(dataset))
        own = [(cell, found) for cell, found in findings if cell.dataset == dataset]
        for index, (cell, found) in enumerate(own):
            if isinstance(found, str):
                continue
            label = f"{experiment.row_heading} {experiment.rows[cell.row].label}"
            style = line_style(index) | {"markevery": max(1, len(found.curve) // 8)}
            axes.plot(range(1, len(found.curve) + 1), found.curve, label=label, **style)
        if kind.logarithmic:
            axes.set_yscale("log")
        axes.set_xlabel(kind.x_label)
        axes.set_ylabel(kind.y_label)
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)
