"""Computes the game's equilibrium: mean budgets that equal the means of clients' best responses to them.

A cap B_t on a round's budget (Theorem 7, corrected) is spent in full: under an inequality, as it is stated,
cost only rises with K, and the optimum is to sample nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gdpfed.extras.fedpcs.game.best_response import Responses, best_responses
from gdpfed.extras.fedpcs.game.payoffs import Floats, Game, GameError, checked_rewards
from gdpfed.extras.fedpcs.game.posted_price import Welfare, round_welfare

TOLERANCE = 1e-3
MOST_ITERATIONS = 60
UNDAMPED_ITERATIONS = 10
DAMPING = 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class Equilibrium:
    """The equilibrium of a game: budgets that are best responses to their own mean.

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
        """The last announced mean budget phi(t), to which budgets are best responses, shape (num_rounds,)."""
        return np.asarray(self.announced[-1])

    @property
    def num_iterations(self) -> int:
        """The number of iterations: how often the mean was announced again after the first time."""
        return len(self.announced) - 1

    @property
    def draw_probabilities(self) -> Floats:
        """Each client's probability in one draw, x_i^t = rho_i^t / sum_j rho_j^t, shape (num_rounds, n)."""
        return np.asarray(self.budgets / self.budgets.sum(axis=1, keepdims=True))

    def types(self) -> dict[str, list[float]]:
        """Return clients' preferences (aversions, shares kept for later rounds); empty if nodes hide them."""
        return {}

    def welfare(self) -> list[Welfare]:
        """Return each round's welfare under several choices of budgets; empty if preferences are secret."""
        return []


@dataclass(frozen=True, eq=False, kw_only=True)
class SolvedGame(Equilibrium):
    """The equilibrium of a game in which one process knows every client's preferences.

    `game`: who has played. `responses`: every client's path, and what it is worth to the client.
    """

    game: Game
    responses: Responses

    def types(self) -> dict[str, list[float]]:
        return {
            "aversions": self.game.aversions.tolist(),
            "corrections": self.responses.corrections.tolist(),
        }

    def welfare(self) -> list[Welfare]:
        return [
            round_welfare(self.game, budgets, reward)
            for budgets, reward in zip(self.budgets, self.rewards.tolist(), strict=True)
        ]


class Answers(Protocol):
    """The clients' answers to an announced mean budget."""

    @property
    def budgets(self) -> Floats:
        """The clients' budgets rho_i^t, shape (num_rounds, n)."""


Answered = TypeVar("Answered", bound=Answers)


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanField(Generic[Answered]):
    """The result of repeated announcements: last answers, all means, and whether the means converged."""

    answers: Answered
    announced: Floats
    converged: bool


def find_mean_field(
    respond: Callable[[Floats], Answered], first: Floats, *, most: int = MOST_ITERATIONS
) -> MeanField[Answered]:
    """Announce a mean budget and average the answers, until the mean changes by less than 1e-3.

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
    """Find the equilibrium of a game whose clients' aversions and first budgets are known.

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


MOST_PLAYS = 20


def spent_in_round(budgets: Floats, cohort_size: float) -> float:
    """Return the expected zCDP that K sampled clients spend together: K sum rho^2 / sum rho."""
    return float(cohort_size * (budgets**2).sum() / budgets.sum())


def cohort_of_cap(budgets: Floats, cap: float, *, least: int) -> int:
    """Return the largest number of sampled clients whose expected zCDP together is within a round's cap.

    Raises GameError: a cap that no sample of `least` clients meets.
    """
    for_one = spent_in_round(budgets, 1)
    size = int(min(len(budgets), np.floor(cap / for_one * (1 + 1e-12))))
    if size < least:
        raise GameError(
            f"no sample meets a round's cap of {cap:g}: {least} clients, the fewest of a sum, spend "
            f"{least * for_one:.4g} on average; raise the cap or lower the reward"
        )
    return size


def play_under_caps(game: Game, rewards: Floats, caps: Floats, *, least: int) -> SolvedGame:
    """Solve the game with the largest cohorts whose expected zCDP is within the cap of each round.

    `caps` are B_t, one a round, public. Clients know how many are sampled, so budgets and numbers depend on
    each other. Raises GameError: caps that are not one a round, or one that no sample meets.
    """
    if caps.shape != (game.num_rounds,):
        raise GameError(f"{caps.size} caps for {game.num_rounds} rounds; give one for each round")
    played = play(game, rewards)
    for _ in range(MOST_PLAYS):
        pairs = zip(played.budgets, caps.tolist(), strict=True)
        sizes = np.array([cohort_of_cap(budgets, cap, least=least) for budgets, cap in pairs])
        if np.array_equal(sizes, played.game.cohort_sizes):
            break
        played = play(replace(game, cohort_sizes=sizes), rewards, guess=played.mean_budgets)
    return played
