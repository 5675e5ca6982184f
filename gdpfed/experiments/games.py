"""What the game of FedPCS comes to, from plans alone: mean field, welfare, the server's cost, caps, and
the noise in a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from conf.experiment import Experiment
from gdpfed.errors import InputError
from gdpfed.experiments.cells import Cell
from gdpfed.experiments.presentation import Footnotes, Presentation
from gdpfed.game.adaptive import spent_in_round
from gdpfed.game.mean_field import TOLERANCE, Play
from gdpfed.game.server import ServerCost
from gdpfed.game.welfare import round_welfare, welfare
from gdpfed.methods import make_method
from gdpfed.methods.fedpcs import FedPCS
from gdpfed.report.labels import dataset_label
from gdpfed.report.style import line_style, new_figure, new_panels, save, shared_legend, styled
from gdpfed.report.table import Table

FIGURE_HEADINGS = ("dataset", "row", "quantity", "value")
PAPER_SCALE = 1.0
SAMPLES_A_ROUND = 200


@dataclass(frozen=True)
class Found:
    """What one cell shows.

    Attributes:
        figures: by their headings, for the table.
        curve: over announcements or rounds, from 1.
    """

    figures: Mapping[str, float]
    curve: Sequence[float]


@dataclass(frozen=True)
class Kind:
    """What is found in a plan, and what its axes say."""

    find: Callable[[FedPCS], Found]
    x_label: str
    y_label: str
    logarithmic: bool = False


def _mean_field(method: FedPCS) -> Found:
    announced = method.play.announced
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
    drawn = method.play.draw_probabilities[round_index]
    return float(drawn.std() / drawn.mean())


def _welfare(method: FedPCS) -> Found:
    played = method.play
    if not isinstance(played, Play):
        raise InputError(
            "welfare needs every client's aversion, which method.types=clients leaves with the nodes"
        )
    rounds = [
        round_welfare(played.game, budgets, reward)
        for budgets, reward in zip(played.budgets, played.rewards.tolist(), strict=True)
    ]
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
    declared, rewards = method.declared, method.play.rewards
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
    sizes, budgets = method.play.cohort_sizes, method.play.budgets
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


def _worth(method: FedPCS) -> Found:
    """What a step of a round has of noise, beside what is spent and what that is worth to the clients."""
    spending, played = method.spending, method.play
    if not isinstance(played, Play):
        raise InputError(
            "welfare needs every client's aversion, which method.types=clients leaves with the nodes"
        )
    rng = np.random.default_rng(0)
    variances = np.array([step_variances(method, t, rng) for t in range(spending.num_rounds)])
    own, one = np.sqrt(variances.mean(axis=0))
    totals = spending.expected_totals()
    worth = [
        welfare(budgets, played.game.aversions, reward)
        for budgets, reward in zip(
            spending.budgets / method.config.method.budget_scale, played.rewards.tolist(), strict=True
        )
    ]
    figures = {
        "own noise": float(own),
        "one noise": float(one),
        "expected zCDP": float(totals.mean()),
        "own noise, per root zCDP": float(own * np.sqrt(totals.mean())),
        "welfare of a round": float(np.mean(worth)),
    }
    return Found(figures, np.sqrt(variances[:, 0]).tolist())


def step_variances(method: FedPCS, round_index: int, rng: np.random.Generator) -> tuple[float, float]:
    """The variance of a round's step, a coordinate, over C^2: of own noises, and of one for all.

    A sample S has sum_S w_i^2 sigma_i^2 with every client's own noise, sigma_i = z_i / D_i. One noise in the
    sum at which no member spends more than its rho_i has max_S w_i^2 sigma_i^2. Means over S: of independent
    draws under fixed weights they are sum_i pi_i v_i and, v falling, sum_i pi_i v_i prod_{j<i} (1 - pi_j);
    other designs are drawn.
    """
    spending, weights = method.spending, method.client_weights(round_index)
    noise = spending.noise_multipliers(round_index, method.plan.distance) / method.declared.record_counts
    parts, inclusions = (weights * noise) ** 2, method.inclusions[round_index]
    by_budget = method.config.method.weights == "budget"
    if spending.draws == "poisson" and not by_budget:
        falling = np.argsort(-parts)
        none_before = np.cumprod(np.append(1.0, 1 - inclusions[falling]))[:-1]
        return float(inclusions @ parts), float((inclusions * parts)[falling] @ none_before)
    chances, size = spending.draw_probabilities[round_index], int(spending.cohort_sizes[round_index])
    found = np.zeros((SAMPLES_A_ROUND, 2))
    for row in found:
        drawn = spending.law.draw(chances, size, rng)
        if len(drawn):
            scale = weights[drawn].sum() ** 2 if by_budget else 1.0
            row[:] = parts[drawn].sum() / scale, parts[drawn].max() / scale
    return float(found[:, 0].mean()), float(found[:, 1].mean())


KINDS: Mapping[str, Kind] = {
    "mean_field": Kind(_mean_field, "announcement", "largest change of a mean budget", logarithmic=True),
    "welfare": Kind(_welfare, "round", "welfare, of what is attainable"),
    "server_cost": Kind(_server_cost, "round", "cost of the server"),
    "caps": Kind(_caps, "round", "clients sampled (%)"),
    "worth": Kind(_worth, "round", "own noise in a step", logarithmic=True),
}

Findings = Sequence[tuple[Cell, Found | str]]


def present_games(experiment: Experiment, datasets: Sequence[str], cells: Sequence[Cell]) -> Presentation:
    """Play the game of every cell, and show what the experiment's quantity says of it."""
    kind = KINDS[experiment.quantity]
    findings = [(cell, _found(kind, cell)) for cell in cells]
    return Presentation(
        tables=[_table(experiment, name, findings) for name in datasets],
        figures=Table(experiment.title, FIGURE_HEADINGS, _figures(findings)),
        draw=partial(_draw, experiment, kind, datasets, findings),
    )


def _found(kind: Kind, cell: Cell) -> Found | str:
    try:
        method = make_method(cell.config)
    except InputError as error:
        return str(error)
    if not isinstance(method, FedPCS):
        return f"method={method.name} plays no game"
    return kind.find(method)


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


def _figures(findings: Findings) -> list[list[str]]:
    return [
        [cell.dataset, cell.row, name, f"{value:.8g}"]
        for cell, found in findings
        if isinstance(found, Found)
        for name, value in found.figures.items()
    ]


@styled
def _draw(
    experiment: Experiment, kind: Kind, datasets: Sequence[str], findings: Findings, path: Path
) -> None:
    """One line a row; a panel a data set."""
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
