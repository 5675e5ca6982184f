"""How many clients to sample under a cap on a round's budget (Theorem 7, corrected).

A cap B_t is spent in full: under an inequality, as it is stated, cost only rises with K, and the optimum is
to sample nobody. For clients that all spend the same, G = 0 and the formula is 0 / 0; so it is solved
numerically.
"""

from dataclasses import dataclass, replace

import numpy as np

from gdpfed.systems.fedpcs.game.mean_field import SolvedGame, play
from gdpfed.systems.fedpcs.game.payoffs import Floats, Game, GameError
from gdpfed.systems.fedpcs.game.server_cost import Reaction, ServerCost

MOST_PLAYS = 20
NUM_REWARDS = 2_001


def adaptive_budget(noise: float, weight: float, slope: float) -> float:
    """Return rho* = (2 G g v / (1 - g))^(1/3), the budget of equal clients that spend a cap in full.

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


def spent_in_round(budgets: Floats, cohort_size: float) -> float:
    """K sum rho^2 / sum rho: what K clients spend on average that are sampled in proportion to budgets."""
    return float(cohort_size * (budgets**2).sum() / budgets.sum())


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The best reward under a cap that is spent in full, and its results.

    Attributes:
        reward: R.
        cohort_size: K, not rounded.
        cost: what the server pays for it.
    """

    reward: float
    cohort_size: float
    cost: float


def best_ratio(cost: ServerCost, round_index: int, reaction: Reaction, cap: float) -> Ratio:
    """Return R and K = B / (sum rho^2 / sum rho) at which the round costs least; K is at most n.

    The reward is found on a grid, from 0 to where no budget moves any more, and then on a finer one.
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


def cohort_of_cap(budgets: Floats, cap: float, *, least: int) -> int:
    """Return the largest K whose expected spending is within the cap, at most all clients.

    Raises:
        GameError: a cap that no sample of `least` clients meets.
    """
    for_one = spent_in_round(budgets, 1)
    size = int(min(len(budgets), np.floor(cap / for_one * (1 + 1e-12))))
    if size < least:
        raise GameError(
            f"no sample meets a round's cap of {cap:g}: {least} clients, the least that are summed, spend "
            f"{least * for_one:.4g} on average; raise the cap or lower the reward"
        )
    return size


def play_under_caps(game: Game, rewards: Floats, caps: Floats, *, least: int) -> SolvedGame:
    """Play with as many clients a round as its cap allows, until their numbers stay; at most twenty times.

    `caps` are B_t, one a round, public. Clients know how many are sampled, so budgets and numbers depend on
    each other.

    Raises:
        GameError: caps that are not one a round, or one that no sample meets.
    """
    if caps.shape != (game.num_rounds,):
        raise GameError(f"{caps.size} caps for {game.num_rounds} rounds; give one a round")
    played = play(game, rewards)
    for _ in range(MOST_PLAYS):
        pairs = zip(played.budgets, caps.tolist(), strict=True)
        sizes = np.array([cohort_of_cap(budgets, cap, least=least) for budgets, cap in pairs])
        if np.array_equal(sizes, played.game.cohort_sizes):
            break
        played = play(replace(game, cohort_sizes=sizes), rewards, guess=played.mean_budgets)
    return played
