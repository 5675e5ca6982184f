"""A node's answers to a game or a posted price, and its check that a run's costs agree with the answer.

Its aversion stays here. A node does not remember what it has answered: terms come with what was announced or
posted last, and the node answers it again. So a node that was restarted, or comes late, checks as much.
"""

from typing import Any

import numpy as np

from gdpfed.extras.fedpcs.client_budgets import epsilon_of_total
from gdpfed.extras.fedpcs.game.announcement import Announcement
from gdpfed.extras.fedpcs.game.payoffs import Floats, GameError
from gdpfed.extras.fedpcs.game.posted_price import PostedPrice
from gdpfed.extras.fedpcs.path_terms import PathTerms
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.node_sides import NodeSide, Values
from gdpfed.federation.node.own_budget import Budget, Budgets, Player
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms

GAME, PRICE = "game", "price"
PATH = "path"
"""What a game's answer has: a budget schedule, before it is scaled."""
# The way through noise and back is rounded.
ROUNDING = 1e-9


class GameNode(NodeSide):
    """How a node answers a game: with its best response to the announcement."""

    def answer(self, told: Values, player: Player | None, budgets: Budgets) -> dict[str, Any]:
        """Return the best budgets of this node's client in the game, before the announced factor scales them.

        Raises:
            NodeConfigError: the node plays no games, has no budget for its records, or begins out of range.
            BudgetRefusedError: what is announced is not a game.
        """
        if player is None:
            raise NodeConfigError(
                "this run is a game of budgets, and this node was not started with aversion and "
                "first-budget: give both, with epsilon-record and a ledger"
            )
        if "record" not in budgets:
            raise NodeConfigError(
                "aversion is given without epsilon-record, the budget that limits what is spent in a game: "
                "give both"
            )
        return {PATH: _response(_announcement(told), player).tolist()}

    def check_terms(self, told: Values | None, player: Player | None, budget: Budget, terms: Terms) -> None:
        """Raise BudgetRefusedError if a run charges other budgets than this node has announced.

        Raises:
            BudgetRefusedError: it is another one, or nothing says what it answers.
            NodeConfigError: the node begins out of range.
        """
        if player is None or not isinstance(terms, PathTerms):
            return
        announced = _announcement(told)
        if announced.digest != terms.announced:
            raise BudgetRefusedError(
                "the terms follow an announcement that this client was not sent: restart the run"
            )
        own = announced.scale * _response(announced, player)
        if len(own) != len(terms.path) or not np.allclose(terms.path, own, rtol=ROUNDING, atol=0.0):
            raise BudgetRefusedError(
                "the terms' budgets by round are not this client's answer to the server's announcement; the "
                "server must plan with the answer that this client gave"
            )


def _response(announced: Announcement, player: Player) -> Floats:
    if player.first_budget is None:
        raise NodeConfigError("aversion is given without first-budget, that of the first round: give both")
    try:
        return announced.answer(player.aversion, player.first_budget)
    except GameError as error:
        raise NodeConfigError(str(error)) from None


def _announcement(told: Values | None) -> Announcement:
    if told is None:
        raise BudgetRefusedError(
            f"the message lacks the record {GAME}, which announces the game: run one version on both"
        )
    try:
        return Announcement.from_scalars(told)
    except GameError as error:
        raise BudgetRefusedError(str(error)) from None


class PriceNode(NodeSide):
    """How a node answers a posted price: with its best budget, which a run must not exceed."""

    def said_epsilon(self, told: Values, player: Player | None, budget: Budget) -> float:
        """Return the epsilon that this client spends at the server's posted price, at most its budget.

        Raises BudgetRefusedError: what is posted is not a price.
        """
        if player is None:
            return budget.epsilon
        try:
            posted = PostedPrice.from_scalars(told)
        except GameError as error:
            raise BudgetRefusedError(str(error)) from None
        (rho,) = posted.budgets(np.array([player.aversion])).tolist()
        return min(budget.epsilon, epsilon_of_total(rho, budget.delta))

    def check_terms(self, told: Values | None, player: Player | None, budget: Budget, terms: Terms) -> None:
        """Raise BudgetRefusedError if a run costs more epsilon than this client spends at the price."""
        if told is None:
            return
        answered = self.said_epsilon(told, player, budget)
        cost = ClientLedger().epsilon(budget.delta, unit=terms.unit, also=terms)
        if not cost <= answered * (1 + ROUNDING):
            raise BudgetRefusedError(
                f"this run costs epsilon {cost:.4g} at delta {budget.delta:g}, above the {answered:.4g} that "
                "this client spends at the server's price"
            )
