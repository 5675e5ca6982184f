"""Theorem 1, corrected: a necessary condition of a client's best response, to check computed ones.

    lambda(t) = a_t lambda(t + 1) + S(t),  lambda(H) = S(H),  S = Q R + M,  Q = P + K x (1 - x)^(K-1)
    M = -2 c rho P - (K / (n phi)) (1 - x)^(K-1) (c rho^2 + (1 - c) a^2)
    a_t = clip((rho_t - phi_t) lambda(t + 1) / (2 (1 - c) P_t), 0, 1),  a_H = 0

The paper's M lacks K / (n phi), which its own (52) has. The condition is necessary and not sufficient.
"""

from dataclasses import dataclass

import numpy as np

from gdpfed.systems.fedpcs.game.payoffs import Floats, Game, participation


@dataclass(frozen=True, eq=False, kw_only=True)
class Conditions:
    """Theorem 1 evaluated at given budget schedules, each of shape (num_rounds, n).

    Attributes:
        multipliers: lambda(t).
        corrections: a_t by the closed form; 0 at the end.
    """

    multipliers: Floats
    corrections: Floats


def marginals(
    game: Game, budgets: Floats, corrections: Floats, mean_budgets: Floats
) -> tuple[Floats, Floats]:
    """Return Q and M, of shape (num_rounds, n): the derivative of a round's payoff by rho is Q R + M."""
    sizes, means = game.cohort_sizes[:, None], mean_budgets[:, None]
    drawn = game.draw_probabilities(budgets, means)
    missed = (1 - drawn) ** (sizes - 1)
    chance = np.stack(
        [participation(x, size) for x, size in zip(drawn, game.cohort_sizes.tolist(), strict=True)]
    )
    c = game.aversions
    worth = chance + sizes * drawn * missed
    cost = c * budgets**2 + (1 - c) * corrections**2
    return worth, -2 * c * budgets * chance - sizes / (game.num_clients * means) * missed * cost


def conditions(
    game: Game, budgets: Floats, corrections: Floats, mean_budgets: Floats, rewards: Floats
) -> Conditions:
    """Return multipliers and corrections of Theorem 1 along given paths."""
    worth, cost = marginals(game, budgets, corrections, mean_budgets)
    sensitivity = worth * rewards[:, None] + cost
    multipliers = np.empty_like(budgets)
    multipliers[-1] = sensitivity[-1]
    closed = np.zeros_like(budgets)
    for t in reversed(range(game.num_rounds - 1)):
        drawn = game.draw_probabilities(budgets[t], mean_budgets[t])
        chance = participation(drawn, int(game.cohort_sizes[t]))
        factor = (budgets[t] - mean_budgets[t]) / (2 * (1 - game.aversions) * chance)
        closed[t] = np.clip(factor * multipliers[t + 1], 0.0, 1.0)
        multipliers[t] = corrections[t] * multipliers[t + 1] + sensitivity[t]
    return Conditions(multipliers=multipliers, corrections=closed)
