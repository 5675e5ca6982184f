"""Theorems of FedPCS's game in closed form, with which tests compare the results of the game's code.

Theorem 1, corrected:

    lambda(t) = a_t lambda(t + 1) + S(t),  lambda(H) = S(H),  S = Q R + M
    a_t = clip((rho_t - phi_t) lambda(t + 1) / (2 (1 - c) P_t), 0, 1),  a_H = 0
"""

from dataclasses import dataclass

import numpy as np

from gdpfed.extras.fedpcs.game.mean_field import spent_in_round
from gdpfed.extras.fedpcs.game.payoffs import Floats, Game, GameError, participation
from gdpfed.extras.fedpcs.game.server_cost import Reaction, ServerCost, marginals


@dataclass(frozen=True, eq=False, kw_only=True)
class Conditions:
    """Multipliers and corrections (weights of own budgets) by Theorem 1, of shape (num_rounds, num_clients).

    Attributes:
        multipliers: lambda(t).
        corrections: a_t by the closed form; 0 at the end.
    """

    multipliers: Floats
    corrections: Floats


def conditions(
    game: Game, budgets: Floats, corrections: Floats, mean_budgets: Floats, rewards: Floats
) -> Conditions:
    """Return Theorem 1's multipliers and new corrections, from the budgets and corrections of all rounds."""
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


NUM_REWARDS = 2_001


def adaptive_budget(noise: float, weight: float, slope: float) -> float:
    """Return rho* of Theorem 7, the cheapest budget of equal clients that spend the server's cap in full.

    It is where K (g v / rho + (1 - g) R rho) is least under K rho = B and rho = G R + H, whatever B and H
    are; `noise` is v and `slope` G.

    Raises:
        GameError: G that is not above 0, as of clients that all spend the same: then nothing moves rho.
    """
    if not slope > 0:
        raise GameError(
            f"budgets move by {slope:g} with the reward; Theorem 7 needs a slope above 0, which clients that "
            "all spend the same do not have"
        )
    return float((2 * slope * weight * noise / (1 - weight)) ** (1 / 3))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The best reward for a round that spends the server's cap fully, with the round's cohort size and cost.

    Attributes:
        reward: R.
        cohort_size: K, not rounded.
        cost: what the server pays for it.
    """

    reward: float
    cohort_size: float
    cost: float


def best_ratio(cost: ServerCost, round_index: int, reaction: Reaction, cap: float) -> Ratio:
    """Return the reward and the cohort size at which a round costs least, if its cap is spent in full.

    The cohort size is K = B / (sum rho^2 / sum rho), at most n. The reward is found on a grid, from 0 to
    where no budget moves any more, and then on a finer one.
    """
    moving = reaction.slopes > 0
    if not moving.any():
        return _ratio(cost, round_index, reaction, cap, 0.0)
    room = (reaction.highest - reaction.offsets)[moving] / reaction.slopes[moving]
    low, high = 0.0, max(float(room.max()), 0.0)
    best = _ratio(cost, round_index, reaction, cap, 0.0)
    for _ in range(3):
        rewards = np.linspace(low, high, NUM_REWARDS)
        best = min(
            (_ratio(cost, round_index, reaction, cap, reward) for reward in rewards.tolist()),
            key=lambda each: each.cost,
        )
        step = (high - low) / (NUM_REWARDS - 1)
        low, high = max(0.0, best.reward - step), best.reward + step
    return best


def _ratio(cost: ServerCost, round_index: int, reaction: Reaction, cap: float, reward: float) -> Ratio:
    budgets, _ = reaction.budgets(reward)
    size = min(float(len(budgets)), cap / spent_in_round(budgets, 1))
    chances = np.minimum(1.0, size * budgets / budgets.sum())
    return Ratio(reward=reward, cohort_size=size, cost=cost.of_round(round_index, chances, budgets, reward))
