"""The mean field: the fixed point of the clients' mean best response."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gdpfed.systems.fedpcs.game.best_response import Responses, best_responses
from gdpfed.systems.fedpcs.game.payoffs import Floats, Game, checked_rewards

TOLERANCE = 1e-3
MOST_ITERATIONS = 60
UNDAMPED_ITERATIONS = 10
DAMPING = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class Equilibrium:
    """Budgets that are best responses to their own mean, found before anything is trained.

    Attributes:
        rewards: R_t, shape (num_rounds,).
        cohort_sizes: K of every round, of the same shape.
        budgets: rho_i^t, every client's path, shape (num_rounds, n).
        announced: phi(t) of every iteration, the first guess included, shape (iterations + 1, num_rounds).
        converged: whether the last two lie less than 1e-3 apart.
    """

    rewards: Floats
    cohort_sizes: npt.NDArray[np.int64]
    budgets: Floats
    announced: Floats
    converged: bool

    @property
    def mean_budgets(self) -> Floats:
        """phi(t) as it was announced last, to which the paths are best responses."""
        return np.asarray(self.announced[-1])

    @property
    def num_iterations(self) -> int:
        """How often the mean was announced anew."""
        return len(self.announced) - 1

    @property
    def draw_probabilities(self) -> Floats:
        """x_i^t = rho_i^t / sum_j rho_j^t, of shape (num_rounds, n)."""
        return np.asarray(self.budgets / self.budgets.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False, kw_only=True)
class SolvedGame(Equilibrium):
    """An equilibrium that was found in one place, where every client's type is known.

    `game`: who has played. `responses`: every client's path, and what it is worth to the client.
    """

    game: Game
    responses: Responses


class Answers(Protocol):
    """The clients' answers to an announced mean."""

    @property
    def budgets(self) -> Floats:
        """rho_i^t, shape (num_rounds, n)."""


Answered = TypeVar("Answered", bound=Answers)


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanField(Generic[Answered]):
    """Where announcing ended: the answers to the last mean, all means, and whether they came to stay."""

    answers: Answered
    announced: Floats
    converged: bool


def find_mean_field(
    respond: Callable[[Floats], Answered], first: Floats, *, most: int = MOST_ITERATIONS
) -> MeanField[Answered]:
    """Announce phi(t), take the mean of the answers, and again, until it stays within 1e-3.

    After ten iterations only half of a change is taken that is larger than the one before; it ends after
    `most`. `first` is the first phi(t), shape (num_rounds,).
    """
    mean, announced = first, [first]
    answers, converged, before = respond(mean), False, np.inf
    for iteration in range(most):
        change = answers.budgets.mean(axis=1) - mean
        distance = float(np.abs(change).max())
        # A change that grows would go on from one side to the other.
        if iteration >= UNDAMPED_ITERATIONS and distance > before:
            change *= DAMPING
        before, converged = distance, distance < TOLERANCE
        mean = mean + change
        announced.append(mean)
        answers = respond(mean)
        if converged:
            break
    return MeanField(answers=answers, announced=np.stack(announced), converged=converged)


def play(game: Game, rewards: Floats, *, guess: Floats | None = None) -> SolvedGame:
    """Find the mean field of clients whose types are known.

    `guess` is the first phi(t); by default the mean of the first budgets in every round.
    """
    checked_rewards(game, rewards)
    first = np.full(game.num_rounds, game.first_budgets.mean()) if guess is None else guess
    found = find_mean_field(partial(best_responses, game, rewards=rewards), first)
    return SolvedGame(
        game=game,
        rewards=rewards,
        cohort_sizes=game.cohort_sizes,
        responses=found.answers,
        budgets=found.answers.budgets,
        announced=found.announced,
        converged=found.converged,
    )
