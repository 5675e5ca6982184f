"""The client's answer to a posted price: the epsilon that is best for it, which a run may not exceed.

Its aversion stays here. As with a game, the node remembers nothing: terms come with the price.
"""

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict

from client_app.carried import settings_of
from gdpfed.clients.messages import PRICE_RECORD
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.own_budget import Budget
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.spending import epsilon_of_total
from gdpfed.systems.fedpcs.game.posted_price import PostedPrice
from gdpfed.systems.fedpcs.game.rules import GameError

ROUNDING = 1e-9


def answered_epsilon(content: RecordDict, context: Context, budget: Budget) -> float:
    """The epsilon that this client says: what the price is worth to it, at most its own budget.

    Without a price, or an aversion to answer one by, it is its own budget.

    Raises:
        BudgetRefusedError: what is posted is no price.
    """
    record, player = content.get(PRICE_RECORD), settings_of(context).player
    if record is None or player is None:
        return budget.epsilon
    try:
        posted = PostedPrice.from_scalars(dict(record) if isinstance(record, ConfigRecord) else {})
    except GameError as error:
        raise BudgetRefusedError(str(error)) from None
    (rho,) = posted.budgets(np.array([player.aversion])).tolist()
    return min(budget.epsilon, epsilon_of_total(rho, budget.delta))


def check_price(content: RecordDict, context: Context, budget: Budget, terms: Terms) -> None:
    """Refuse a run that costs more than this client answers the price with.

    Raises:
        BudgetRefusedError: it does.
    """
    if PRICE_RECORD not in content:
        return
    answered = answered_epsilon(content, context, budget)
    cost = ClientLedger().epsilon(budget.delta, unit=terms.unit, also=terms)
    if not cost <= answered * (1 + ROUNDING):
        raise BudgetRefusedError(
            f"this run costs epsilon {cost:.4g} at delta {budget.delta:g}, above the {answered:.4g} that "
            "this client answers the price with"
        )
