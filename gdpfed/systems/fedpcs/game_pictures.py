"""Pictures of a plan's game: the clients' budgets, the iteration of the mean field, and welfare."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from gdpfed.report.style import line_style, markers_every, new_figure, new_panels, save, shared_legend, styled
from gdpfed.systems.fedpcs.fedpcs import FedPCS
from gdpfed.systems.fedpcs.game.mean_field import TOLERANCE, SolvedGame
from gdpfed.systems.fedpcs.game.welfare import round_welfare

MOST_PATHS = 100
PATH_OPACITY = 0.35


@styled
def draw_game(method: FedPCS, path: Path) -> None:
    """Draw paths, convergence and welfare, as PNG; no welfare where nodes keep their aversions."""
    known = isinstance(method.equilibrium, SolvedGame)
    figure = new_figure(9.0 if known else 6.4, 2.9)
    panels = new_panels(figure, 2 + known, columns=3)
    _draw_paths(method, panels[0])
    _draw_convergence(method, panels[1])
    if isinstance(method.equilibrium, SolvedGame):
        _draw_welfare(method.equilibrium, panels[2])
    for axes in panels:
        axes.grid(alpha=0.3)
    shared_legend(figure, panels)
    save(figure, path)


def _draw_paths(method: FedPCS, axes: Axes) -> None:
    """Each client's path, a hundred of them at most, in even steps of their first budgets, and the mean."""
    budgets = method.spending.budgets
    rounds = np.arange(1, len(budgets) + 1)
    order = np.argsort(budgets[0], kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, MOST_PATHS).astype(int))]
    axes.plot(rounds, budgets[:, shown], color="#888888", linewidth=0.7, alpha=PATH_OPACITY)
    axes.plot([], [], color="#888888", linewidth=0.7, label="one client")
    style = line_style(0) | {"markevery": markers_every(len(rounds))}
    axes.plot(rounds, budgets.mean(axis=1), label="mean of all", **style)
    axes.set_xlabel("round")
    axes.set_ylabel("zCDP of a round")


def _draw_convergence(method: FedPCS, axes: Axes) -> None:
    changes = np.abs(np.diff(method.equilibrium.announced, axis=0)).max(axis=1)
    style = line_style(1) | {"markevery": markers_every(len(changes))}
    # A mean that stays exactly has no place on a logarithmic axis.
    axes.plot(np.arange(1, len(changes) + 1), np.maximum(changes, 1e-12), label="change of the mean", **style)
    axes.axhline(TOLERANCE, color="#888888", linestyle=":", label="it stays")
    axes.set_yscale("log")
    axes.set_xlabel("announcement")
    axes.set_ylabel("largest change of a round's mean")


def _draw_welfare(play: SolvedGame, axes: Axes) -> None:
    found = [
        round_welfare(play.game, budgets, reward)
        for budgets, reward in zip(play.budgets, play.rewards.tolist(), strict=True)
    ]
    rounds = np.arange(1, len(found) + 1)
    for index, (label, values) in enumerate(
        (
            ("welfare of the game", [each.played for each in found]),
            ("of a posted price", [each.attainable for each in found]),
        )
    ):
        style = line_style(2 + index) | {"markevery": markers_every(len(rounds))}
        axes.plot(rounds, values, label=label, **style)
    axes.set_xlabel("round")
    axes.set_ylabel("welfare of a round")
