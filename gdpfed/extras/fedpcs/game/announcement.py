"""What the server announces to nodes in a game, and how a node answers with its best budgets."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Self

import numpy as np

from gdpfed.extras.fedpcs.game.best_response import best_responses
from gdpfed.extras.fedpcs.game.payoffs import Floats, Game, GameError, check_entries

MOST_ROUNDS = 10_000
MOST_CLIENTS = 2**31

Scalar = int | float | list[int] | list[float]


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The public values of a game from which a client computes its best response.

    Attributes:
        num_clients: n.
        cohort_sizes: K of every round.
        least, highest: rho_L and rho_H.
        scale: multiplies all budgets once the game is played.
        rewards: R_t of every round.
        mean_budgets: phi(t) of every round.

    Raises GameError: a number that is out of range, or lists of different lengths.
    """

    num_clients: int
    cohort_sizes: tuple[int, ...]
    least: float
    highest: float
    scale: float
    rewards: tuple[float, ...]
    mean_budgets: tuple[float, ...]

    def __post_init__(self) -> None:
        whole: tuple[Any, ...] = (self.num_clients, *self.cohort_sizes)
        if any(type(each) is not int or not 1 <= each <= MOST_CLIENTS for each in whole):
            raise GameError(
                f"the announced game has {self.num_clients!r} clients and rounds of "
                f"{self.cohort_sizes!r}; each must be a whole number from 1 to {MOST_CLIENTS}"
            )
        rounds = {len(self.cohort_sizes), len(self.rewards), len(self.mean_budgets)}
        if len(rounds) > 1 or not 1 <= len(self.rewards) <= MOST_ROUNDS:
            raise GameError(
                f"{len(self.cohort_sizes)} sizes, {len(self.rewards)} rewards and {len(self.mean_budgets)} "
                f"means are announced; every round needs one of each, for 1 to {MOST_ROUNDS}"
            )
        numbers: tuple[Any, ...] = (
            *(self.least, self.highest, self.scale),
            *(*self.rewards, *self.mean_budgets),
        )
        if any(type(each) is not float or not 0 <= each < np.inf for each in numbers) or self.scale == 0:
            raise GameError(
                "a number in the announcement is not finite or is negative, or the scale is 0; give "
                "finite positive numbers"
            )
        if not all(self.least <= mean <= self.highest for mean in self.mean_budgets):
            raise GameError(
                f"a mean budget is announced outside {self.least:g} to {self.highest:g}, the range of "
                "all budgets: give a mean within it"
            )

    def answer(self, aversion: float, first_budget: float) -> Floats:
        """Return a client's best budget in each round, not yet multiplied by `scale`, shape (num_rounds,).

        Raises:
            GameError: a first budget below the least or above the highest, or a game that cannot be played.
        """
        if not self.least <= first_budget <= self.highest:
            raise GameError(
                f"first-budget is {first_budget:g}, and this run takes budgets from {self.least:g} to "
                f"{self.highest:g}: start the node with one between them, or do not join"
            )
        game = Game(
            aversions=np.array([aversion]),
            first_budgets=np.array([first_budget]),
            cohort_sizes=np.asarray(self.cohort_sizes, dtype=np.int64),
            least=self.least,
            highest=self.highest,
            unseen=self.num_clients - 1,
        )
        found = best_responses(game, np.asarray(self.mean_budgets), np.asarray(self.rewards))
        return np.asarray(found.budgets[:, 0])

    @property
    def digest(self) -> str:
        """A hash of the announcement, which must be equal for all clients of a run."""
        return sha256(json.dumps(self.to_scalars(), sort_keys=True).encode()).hexdigest()

    def to_scalars(self) -> dict[str, Scalar]:
        """Return what clients are told before the game as flat values for a message."""
        values = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Self:
        """Read an announcement from the values that :meth:`to_scalars` returned.

        Raises GameError: entries that are missing, unknown or out of range.
        """
        check_entries("the announcement of a game", scalars, cls)
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in scalars.items()
        }
        for name in ("cohort_sizes", "rewards", "mean_budgets"):
            if not isinstance(values[name], tuple):
                raise GameError(
                    f"{name} is announced as {values[name]!r}; it must be a list with one entry a round"
                )
        return cls(**values)
