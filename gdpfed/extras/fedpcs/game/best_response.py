"""Computes a client's best response: its budget in each round, given the rewards and the mean budgets.

The condition of Theorem 1 is necessary and not sufficient: sweeping it forward and backward ends in worse
local optima. So the best response is found by dynamic programming over one state, the budget, and one
control, the share of it that a client keeps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdpfed.extras.fedpcs.game.payoffs import Floats, Game, participation, payoff

NUM_STATES, NUM_CONTROLS = 241, 61
MOST_OWN_TYPES = 128
"""Up to this number of clients, each is solved by itself; more share values on a grid of aversions."""
NUM_TYPES = 65
MOST_AT_ONCE = 20_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Responses:
    """All clients' best responses: budgets, the share of each budget kept for the next round, and utilities.

    `budgets`: rho_i^t, shape (num_rounds, n). `corrections`: a_i^t, the share of its own budget that a client
    keeps, of the same shape; 0 at the end. `utilities`: what all rounds are worth to each client, shape (n,).
    """

    budgets: Floats
    corrections: Floats
    utilities: Floats


@dataclass(frozen=True, eq=False)
class _Grid:
    """Evenly spaced points, between which values are interpolated linearly."""

    points: Floats

    def places(self, values: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the grid point at or below each value, and the relative distance from it, in [0, 1]."""
        first, last = self.points[0], self.points[-1]
        scaled = np.clip(
            (values - first) * ((len(self.points) - 1) / (last - first)), 0, len(self.points) - 1
        )
        below = np.minimum(scaled.astype(np.int64), len(self.points) - 2)
        return below, scaled - below


def best_responses(game: Game, mean_budgets: Floats, rewards: Floats) -> Responses:
    """Return each client's best budgets, given announced mean budgets phi(t) and rewards R_t.

    rho^{t+1} = (1 - a) phi(t) + a rho^t, from rho_i^0. Budgets and controls are on grids of 241 and 61
    points, with linear interpolation between budgets.
    """
    if game.is_homogeneous and bool(np.ptp(np.append(mean_budgets, game.first_budgets[0])) < 1e-12):
        budgets = np.tile(game.first_budgets, (game.num_rounds, 1))
        corrections = np.zeros_like(budgets)
        return Responses(
            budgets=budgets,
            corrections=corrections,
            utilities=utilities(game, budgets, corrections, mean_budgets, rewards),
        )
    ends = np.concatenate([game.first_budgets, mean_budgets])
    states = _Grid(np.linspace(ends.min(), ends.max(), NUM_STATES))
    own = len(game.aversions) <= MOST_OWN_TYPES or float(np.ptp(game.aversions)) == 0.0
    types = game.aversions if own else np.linspace(game.aversions.min(), game.aversions.max(), NUM_TYPES)
    values = _largest_utilities(game, states, types, mean_budgets, rewards)
    controls = np.linspace(0.0, 1.0, NUM_CONTROLS)
    budgets = np.empty((game.num_rounds, len(game.aversions)))
    corrections = np.zeros_like(budgets)
    for begin in range(0, len(game.aversions), MOST_AT_ONCE):
        part = slice(begin, begin + MOST_AT_ONCE)
        aversions = game.aversions[part]
        columns = np.arange(begin, begin + len(aversions)), np.zeros(len(aversions))
        if not own:
            columns = _Grid(types).places(aversions)
        budget = game.first_budgets[part]
        for t in range(game.num_rounds):
            budgets[t, part] = budget
            if t == game.num_rounds - 1:
                break
            chance = participation(game.draw_probabilities(budget, mean_budgets[t]), game.cohort_sizes[t])
            cost = chance * (1 - aversions)
            following = mean_budgets[t] + controls[:, None] * (budget - mean_budgets[t])
            worth = (
                _interpolate(values[t + 1], states.places(following), columns) - cost * controls[:, None] ** 2
            )
            chosen = worth.argmax(axis=0)
            corrections[t, part] = controls[chosen]
            budget = following[chosen, np.arange(len(chosen))]
    return Responses(
        budgets=budgets,
        corrections=corrections,
        utilities=utilities(game, budgets, corrections, mean_budgets, rewards),
    )


def _largest_utilities(
    game: Game, states: _Grid, types: Floats, mean_budgets: Floats, rewards: Floats
) -> list[Floats]:
    """Compute a client's largest utility from each round on, by its budget and its aversion to privacy cost.

    The list has an array of shape (budgets, aversions) for each round, computed backwards.
    """
    points, controls = states.points[:, None], np.linspace(0.0, 1.0, NUM_CONTROLS)
    values: list[Floats] = [np.empty(0)] * game.num_rounds
    for t in reversed(range(game.num_rounds)):
        chance = participation(game.draw_probabilities(points, mean_budgets[t]), game.cohort_sizes[t])
        now = payoff(chance, points, np.zeros(1), types, float(rewards[t]))
        if t + 1 < game.num_rounds:
            cost, later = chance * (1 - types), values[t + 1]
            best, worth, above = np.full_like(now, -np.inf), np.empty_like(now), np.empty_like(now)
            for control in controls.tolist():
                below, share = states.places(mean_budgets[t] + control * (states.points - mean_budgets[t]))
                np.take(later, below, axis=0, out=worth, mode="clip")
                np.take(later, below + 1, axis=0, out=above, mode="clip")
                above -= worth
                above *= share[:, None]
                worth += above
                np.multiply(cost, control**2, out=above)
                worth -= above
                np.maximum(best, worth, out=best)
            now = now + best
        values[t] = now
    return values


def _interpolate(
    values: Floats,
    rows: tuple[npt.NDArray[np.int64], Floats],
    columns: tuple[npt.NDArray[np.int64], Floats],
) -> Floats:
    """Interpolate bilinearly between the points of a grid."""
    (row, down), (column, right) = rows, columns
    upper = values[row, column] * (1 - down) + values[row + 1, column] * down
    if not right.any():
        return np.asarray(upper)
    other = np.minimum(column + 1, values.shape[1] - 1)
    lower = values[row, other] * (1 - down) + values[row + 1, other] * down
    return np.asarray(upper * (1 - right) + lower * right)


def utilities(
    game: Game, budgets: Floats, corrections: Floats, mean_budgets: Floats, rewards: Floats
) -> Floats:
    """Return each client's utility: expected payments less expected costs over all rounds, shape (n,).

    It is sum_t P_i^t (rho_i R_t - c_i rho_i^2 - (1 - c_i) a_i^2) (FedPCS paper, eq. 14).
    """
    total = np.zeros(budgets.shape[1])
    for t, size in enumerate(game.cohort_sizes.tolist()):
        chance = participation(game.draw_probabilities(budgets[t], mean_budgets[t]), size)
        total += payoff(chance, budgets[t], corrections[t], game.aversions, float(rewards[t]))
    return total
