"""Welfare: the sum of the clients' utilities, with rewards paid by the server."""

from dataclasses import dataclass

import numpy as np

from gdpfed.systems.fedpcs.game.payoffs import Floats, Game


def welfare(budgets: Floats, aversions: Floats, reward: float) -> float:
    """sum_i (R rho_i - c_i rho_i^2), of one round (paper, eq. 30)."""
    return float((reward * budgets - aversions * budgets**2).sum())


def price_answers(aversions: Floats, price: float, least: float, highest: float) -> Floats:
    """rho_i = clip(R / (2 c_i)), the answer to a price R that is best for each client, of the same shape."""
    return np.clip(price / (2 * aversions), least, highest)


def posted_price_budgets(game: Game, reward: float) -> Floats:
    """Each client's own best answer to a posted price, shape (n,).

    It is also where welfare is largest: nobody races to be sampled. The answer is truthful, since nobody
    else's changes it.
    """
    return price_answers(game.aversions, reward, game.least, game.highest)


@dataclass(frozen=True, kw_only=True)
class Welfare:
    """The welfare of one round, by how budgets are found.

    Attributes:
        attainable: the most, by a posted price.
        played: of the game's budgets.
        at_least, at_highest: with everybody at rho_L or rho_H.
        unclipped: (1/4) sum R^2 / c_i, the paper's optimum, which ignores that budgets have a highest.
    """

    attainable: float
    played: float
    at_least: float
    at_highest: float
    unclipped: float

    @property
    def price_of_anarchy(self) -> float | None:
        """attainable / played; None where what is played is worth nothing or less: there is no such ratio."""
        return self.attainable / self.played if self.played > 0 else None


def round_welfare(game: Game, budgets: Floats, reward: float) -> Welfare:
    """Return the welfare of a round with these budgets, shape (n,), beside what could be had."""
    c, everybody = game.aversions, np.ones(game.num_clients)
    return Welfare(
        attainable=welfare(posted_price_budgets(game, reward), c, reward),
        played=welfare(budgets, c, reward),
        at_least=welfare(game.least * everybody, c, reward),
        at_highest=welfare(game.highest * everybody, c, reward),
        unclipped=float((reward**2 / (4 * c)).sum()),
    )
