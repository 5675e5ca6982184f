"""The rules of the game: its players, its rounds, and a client's utility in a round."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import InputError

Floats = npt.NDArray[np.float64]


class GameError(InputError):
    """Raised if the game cannot be played with the given numbers."""


def check_entries(what: str, scalars: Collection[str], told: type[Any]) -> None:
    """Raise GameError unless a message has exactly one entry for each field of a dataclass.

    `what`: names the message in the error. `told`: the dataclass that the message is read into.
    """
    names = {field.name for field in fields(told)}
    if set(scalars) != names:
        odd = ", ".join(sorted(names ^ set(scalars)))
        raise GameError(
            f"{what} lacks entries or has unknown ones: {odd}; run one version on server and nodes"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Game:
    """A game between clients who choose budgets and a server that samples K of them in each round.

    Attributes:
        aversions: c_i in (0, 1), the weight of a client's privacy cost, shape (n,).
        first_budgets: rho_i^0, the zCDP that its first update costs, shape (n,).
        cohort_sizes: K of every round, shape (num_rounds,).
        least, highest: rho_L and rho_H, between which every budget lies.
        unseen: how many clients play as well of whom nothing is known here but the mean of all.

    Raises GameError: a number that is out of range, in one line.
    """

    aversions: Floats
    first_budgets: Floats
    cohort_sizes: npt.NDArray[np.int64]
    least: float
    highest: float
    unseen: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.least < self.highest < np.inf:
            raise GameError(
                f"budgets go from {self.least:g} to {self.highest:g}; the least must be above 0 and below "
                "the highest"
            )
        if not len(self.aversions) or self.aversions.shape != self.first_budgets.shape:
            raise GameError(
                f"{len(self.aversions)} aversions and {len(self.first_budgets)} first budgets; give one of "
                "each for every client"
            )
        for client, value in enumerate(self.aversions.tolist()):
            if not 0 < value < 1:
                raise GameError(f"client {client} has an aversion of {value:g}; it must lie in (0, 1)")
        for client, value in enumerate(self.first_budgets.tolist()):
            if not self.least <= value <= self.highest:
                raise GameError(
                    f"client {client} has a first budget of {value:g}; it must lie from the least budget, "
                    f"{self.least:g}, to the highest, {self.highest:g}"
                )
        for size in self.cohort_sizes.tolist():
            if not 1 <= size <= self.num_clients:
                raise GameError(
                    f"K = {size} clients are to be sampled of {self.num_clients}; sample at least one and at "
                    "most all"
                )
        if not len(self.cohort_sizes):
            raise GameError("the game has no round; give at least one")

    @property
    def num_clients(self) -> int:
        """The number of clients: those whose preferences are known here, and others (`unseen` of them)."""
        return len(self.aversions) + self.unseen

    @property
    def num_rounds(self) -> int:
        """H + 1: the number of rounds, from 0 to H."""
        return len(self.cohort_sizes)

    @cached_property
    def is_homogeneous(self) -> bool:
        """Whether the first budgets of all clients are equal, so that each one equals their mean."""
        return bool(np.ptp(self.first_budgets) < 1e-12)

    def draw_probabilities(self, budgets: Floats, mean_budget: Floats | float) -> Floats:
        """Return x = rho / (n phi), a client's budget over n times the mean: its probability in one draw."""
        return np.minimum(1.0, budgets / (self.num_clients * mean_budget))


def participation(draw_probability: Floats, cohort_size: int) -> Floats:
    """Return P = 1 - (1 - x)^K, the probability to be chosen at least once in K draws."""
    return np.asarray(-np.expm1(cohort_size * np.log1p(-np.minimum(draw_probability, 1 - 1e-16))))


def payoff(
    probability: Floats, budgets: Floats, corrections: Floats, aversions: Floats, reward: float
) -> Floats:
    """Return a client's utility in a round: expected payment less expected cost (FedPCS paper, eq. 14).

    It is P (rho R - c rho^2 - (1 - c) a^2), of which P c rho^2 is the privacy cost.
    """
    privacy = aversions * budgets**2 + (1 - aversions) * corrections**2
    return np.asarray(probability * (budgets * reward - privacy))


def checked_rewards(game: Game, rewards: Floats) -> Floats:
    """Return the rewards R_t of all rounds, after checking them.

    Raises GameError: not one a round, or one that is negative or not finite.
    """
    if rewards.shape != (game.num_rounds,):
        raise GameError(f"{rewards.size} rewards for {game.num_rounds} rounds; give one for each round")
    for value in rewards.tolist():
        if not 0 <= value < np.inf:
            raise GameError(f"a reward is {value:g}; it must be finite and not negative")
    return rewards
