"""Posted prices: clients' best answers to a price per unit of budget, and the resulting welfare.

At a posted price there is one reward for a unit of budget, to which every client answers once. A client of
aversion c is paid R rho for its budget rho of a whole run and loses c rho^2. R / (2 c) is best for it,
whatever the others answer: the price is truthful and maximises welfare.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from gdpfed.extras.fedpcs.game.payoffs import Floats, Game, GameError, check_entries


def welfare(budgets: Floats, aversions: Floats, reward: float) -> float:
    """Return the welfare of a round: payments less privacy costs, sum_i (R rho_i - c_i rho_i^2)."""
    return float((reward * budgets - aversions * budgets**2).sum())


def price_answers(aversions: Floats, price: float, least: float, highest: float) -> Floats:
    """Return each client's best budget at a price R: rho_i = R / (2 c_i), clipped to [least, highest]."""
    return np.clip(price / (2 * aversions), least, highest)


def posted_price_budgets(game: Game, reward: float) -> Floats:
    """Return each client's best budget at a posted price, shape (n,).

    It is also where welfare is largest: nobody races to be sampled. The answer is truthful, since nobody
    else's changes it.
    """
    return price_answers(game.aversions, reward, game.least, game.highest)


@dataclass(frozen=True, kw_only=True)
class Welfare:
    """The welfare of one round under several ways to choose budgets.

    `attainable`: the most, by a posted price. `played`: of the game's budgets. `at_least`, `at_highest`: with
    everybody at rho_L or rho_H. `unclipped`: (1/4) sum R^2 / c_i, the paper's optimum, which ignores that
    budgets have a highest.
    """

    attainable: float
    played: float
    at_least: float
    at_highest: float
    unclipped: float


def round_welfare(game: Game, budgets: Floats, reward: float) -> Welfare:
    """Return a round's welfare under these budgets, shape (n,), and under other budgets for comparison."""
    c, everybody = game.aversions, np.ones(game.num_clients)
    return Welfare(
        attainable=welfare(posted_price_budgets(game, reward), c, reward),
        played=welfare(budgets, c, reward),
        at_least=welfare(game.least * everybody, c, reward),
        at_highest=welfare(game.highest * everybody, c, reward),
        unclipped=float((reward**2 / (4 * c)).sum()),
    )


@dataclass(frozen=True, kw_only=True)
class PostedPrice:
    """A price that the server pays for each unit of zCDP, and the range of budgets that the server accepts.

    `price`: R, of a unit of zCDP. `least`, `highest`: between these lie all budgets of a whole run, in zCDP.
    Raises GameError: a number that is out of range.
    """

    price: float
    least: float
    highest: float

    def __post_init__(self) -> None:
        numbers: tuple[Any, ...] = (self.price, self.least, self.highest)
        if any(type(each) is not float or not 0 < each < np.inf for each in numbers):
            raise GameError(
                f"a price of {self.price!r} is posted; price and bounds must be above 0 and finite"
            )
        if not self.least < self.highest:
            raise GameError(
                f"budgets from {self.least:g} to {self.highest:g} are asked for; the least must be below the "
                "highest"
            )

    def budgets(self, aversions: Floats) -> Floats:
        """Return the privacy budget that each client chooses, by its cost per unit and the posted price."""
        return price_answers(aversions, self.price, self.least, self.highest)

    def to_scalars(self) -> dict[str, float]:
        """Return the posted price as flat values for a message."""
        return asdict(self)

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Self:
        """Read a posted price from the values that :meth:`to_scalars` returned.

        Raises GameError: entries that are missing, unknown or out of range.
        """
        check_entries("the posted price", scalars, cls)
        return cls(**scalars)
