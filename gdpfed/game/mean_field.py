"""The mean field: everybody's best response to the mean that comes of everybody's best responses."""

from dataclasses import dataclass

import numpy as np

from gdpfed.game.best_response import Responses, best_responses
from gdpfed.game.rules import Floats, Game, checked_rewards

TOLERANCE = 1e-3
MOST_ITERATIONS = 60
UNDAMPED_ITERATIONS = 10
DAMPING = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class Play:
    """A game that has been played, before anything is trained.

    Attributes:
        rewards: R_t, shape (num_rounds,).
        responses: every client's path.
        mean_budgets: phi(t) as it was announced last, to which the paths are best responses.
        announced: phi(t) of every iteration, the first guess included, shape (iterations + 1, num_rounds).
        converged: whether the last two lie less than 1e-3 apart.
    """

    game: Game
    rewards: Floats
    responses: Responses
    mean_budgets: Floats
    announced: Floats
    converged: bool

    @property
    def budgets(self) -> Floats:
        """rho_i^t, shape (num_rounds, n)."""
        return self.responses.budgets

    @property
    def num_iterations(self) -> int:
        """How often the mean was announced anew."""
        return len(self.announced) - 1

    @property
    def draw_probabilities(self) -> Floats:
        """x_i^t = rho_i^t / sum_j rho_j^t, of shape (num_rounds, n)."""
        return np.asarray(self.budgets / self.budgets.sum(axis=1, keepdims=True))


def play(game: Game, rewards: Floats, *, guess: Floats | None = None) -> Play:
    """Announce phi(t), take the mean of the best responses, and again, until it stays within 1e-3.

    After ten iterations only half of a change is taken that is larger than the one before; it ends after
    sixty. `guess` is the first phi(t); by default the mean of the first budgets in every round.
    """
    checked_rewards(game, rewards)
    mean = np.full(game.num_rounds, game.first_budgets.mean()) if guess is None else guess
    announced = [mean]
    responses, converged, before = best_responses(game, mean, rewards), False, np.inf
    for iteration in range(MOST_ITERATIONS):
        change = responses.budgets.mean(axis=1) - mean
        distance = float(np.abs(change).max())
        # A change that grows would go on from one side to the other.
        if iteration >= UNDAMPED_ITERATIONS and distance > before:
            change *= DAMPING
        before, converged = distance, distance < TOLERANCE
        mean = mean + change
        announced.append(mean)
        responses = best_responses(game, mean, rewards)
        if converged:
            break
    return Play(
        game=game,
        rewards=rewards,
        responses=responses,
        mean_budgets=mean,
        announced=np.stack(announced),
        converged=converged,
    )
