"""The server's cost of a game, and the rewards that minimise it (FedPCS paper, Lemma 2, corrected).

A round t costs the server, over the clients that it samples with chance pi_i, their sum of
g v_i / rho_i + (1 - g) R rho_i with v_i = scale theta_i^2 / ((t + 1) D_i^2). The paper divides by t and so,
in its first round, by zero; its sum is over a sample that is drawn after R is announced. `scale` is what its
(13) drops of its Proposition 2; in the paper's own units, where it is 1, the best reward is 0.
"""

from dataclasses import dataclass

import numpy as np

from gdpfed.extras.fedpcs.game.mean_field import SolvedGame, play
from gdpfed.extras.fedpcs.game.payoffs import Floats, Game, GameError, participation

MOST_REWARD = 1e6
MOST_PLAYS = 8
REWARD_TOLERANCE = 1e-3
BISECTIONS = 80


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerCost:
    """The parameters of the server's cost: how it weighs accuracy against payment.

    `weight`: g in [0, 1): accuracy against payment. `scale`: what g's part is multiplied by; d C^2 for
    updates of d coordinates, 1 in the paper's units. `shares`: theta_i, shape (n,). `examples`: D_i, shape
    (n,).
    """

    weight: float
    scale: float
    shares: Floats
    examples: Floats

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise GameError(f"the server's weight of accuracy is {self.weight:g}; it must lie in [0, 1)")
        if not 0 < self.scale < np.inf:
            raise GameError(
                f"the server's scale of accuracy is {self.scale:g}; it must be finite and above 0"
            )

    def noise(self, round_index: int) -> Floats:
        """Return v_i, shape (n,): the server's cost of client i's noise is `weight` v_i / rho_i."""
        return np.asarray(self.scale * self.shares**2 / ((round_index + 1) * self.examples**2))

    def of_round(self, round_index: int, chances: Floats, budgets: Floats, reward: float) -> float:
        """Return the server's expected cost of a round: weighted cost of noise, plus weighted payments.

        It is sum_i pi_i (g v_i / rho_i + (1 - g) R rho_i).
        """
        paid = (1 - self.weight) * reward * budgets
        return float((chances * (self.weight * self.noise(round_index) / budgets + paid)).sum())


@dataclass(frozen=True, eq=False, kw_only=True)
class Reaction:
    """How clients' budgets depend on a round's reward R: rho_i = G_i R + H_i, within limits.

    Attributes:
        slopes, offsets: G and H, shape (n,).
        lowest, highest: between these every budget stays, shape (n,).
    """

    slopes: Floats
    offsets: Floats
    lowest: Floats
    highest: Floats

    def budgets(self, reward: float) -> tuple[Floats, Floats]:
        """Return the budgets that clients choose at a reward, and their derivatives with respect to it."""
        free = self.slopes * reward + self.offsets
        moves = (free > self.lowest) & (free < self.highest)
        return np.clip(free, self.lowest, self.highest), np.where(moves, self.slopes, 0.0)


def best_reward(cost: ServerCost, round_index: int, chances: Floats, reaction: Reaction) -> float:
    """Return the reward R with the least cost of a round; 0 if the cost only rises (FedPCS paper, Lemma 2).

        0 = sum_i pi_i [ (1 - g)(rho_i + G_i R) - g v_i G_i / rho_i^2 ],  rho_i = G_i R + H_i

    It is found by bracketing, from 0 upwards; the largest reward is 1e6. The paper prints -H_i where
    -(1 - g) H_i follows, and squares what is cubed.
    """
    noise, weight = cost.noise(round_index), cost.weight

    def derivative(reward: float) -> float:
        budgets, slopes = reaction.budgets(reward)
        paid = (1 - weight) * (budgets + slopes * reward)
        return float((chances * (paid - weight * noise * slopes / budgets**2)).sum())

    if derivative(0.0) >= 0:
        return 0.0
    low, high = 0.0, 1e-6
    while derivative(high) < 0:
        if high >= MOST_REWARD:
            return MOST_REWARD
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return (low + high) / 2


def reactions(played: SolvedGame) -> list[Reaction]:
    """Return how clients' budgets in each round depend on its reward, linearised at the last equilibrium.

    A correction is a = I R + J by Theorem 1, with I = (rho - phi) Q / (2 (1 - c) P) of the round before held
    at the last play; one at 0 or 1 does not move. J is such that the play itself is on the line: the closed
    form's own J adds up the errors of all later rounds.
    """
    game, paths, means = played.game, played.responses, played.mean_budgets
    worth, _ = marginals(game, paths.budgets, paths.corrections, means)
    still = paths.budgets[0]
    found = [Reaction(slopes=np.zeros(len(still)), offsets=still, lowest=still, highest=still)]
    for t in range(1, game.num_rounds):
        before, kept, mean = paths.budgets[t - 1], paths.corrections[t - 1], means[t - 1]
        drawn = game.draw_probabilities(before, mean)
        chance = participation(drawn, int(game.cohort_sizes[t - 1]))
        slopes = (before - mean) ** 2 * worth[t] / (2 * (1 - game.aversions) * chance)
        slopes = np.where((kept > 0) & (kept < 1), slopes, 0.0)
        found.append(
            Reaction(
                slopes=slopes,
                offsets=paths.budgets[t] - slopes * played.rewards[t],
                lowest=np.minimum(before, mean),
                highest=np.maximum(before, mean),
            )
        )
    return found


def play_best_rewards(game: Game, cost: ServerCost, chances: Floats, start: Floats) -> SolvedGame:
    """Alternate playing the game and choosing the best rewards, until the rewards converge.

    `chances` are pi_i, shape (num_rounds, n), and `start` the first rewards. The reward of the first round
    changes nothing of its budgets, so it is 0. It ends after eight plays.
    """
    rewards, played = start, play(game, start)
    for _ in range(MOST_PLAYS):
        wanted = np.array(
            [best_reward(cost, t, chances[t], each) for t, each in enumerate(reactions(played))]
        )
        if float(np.abs(wanted - rewards).max()) <= REWARD_TOLERANCE * (1 + float(rewards.max())):
            break
        rewards = (rewards + wanted) / 2 if wanted.any() else wanted
        played = play(game, rewards, guess=played.mean_budgets)
    return played


def marginals(
    game: Game, budgets: Floats, corrections: Floats, mean_budgets: Floats
) -> tuple[Floats, Floats]:
    """Return Q and M, shape (num_rounds, n): d payoff / d rho = Q R + M in each round, for reward R."""
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
