"""The client's side of a game: answer an announcement with the best response, and compare terms with it.

Its aversion stays here. A node does not remember what it has answered: terms come with what was announced
last, and the node answers it again. So a node that was restarted, or comes late, checks as much.
"""

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict

from client_app.carried import settings_of
from gdpfed.clients.messages import GAME_RECORD, PATH
from gdpfed.federation.node.budget import BudgetRefusedError
from gdpfed.federation.node.node_config import (
    AVERSION_KEY,
    FIRST_BUDGET_KEY,
    RECORD_EPSILON_KEY,
    NodeConfigError,
)
from gdpfed.federation.node.own_budget import Player
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.systems.fedpcs.game.announcement import Announcement
from gdpfed.systems.fedpcs.game.rules import Floats, GameError

# The way through noise and back is rounded.
ROUNDING = 1e-9


def answer(content: RecordDict, context: Context) -> RecordDict:
    """The path that is best for this client, before it is scaled.

    Raises:
        NodeConfigError: the node plays no games, has no budget for its records, or begins out of range.
        BudgetRefusedError: what is announced is no game.
    """
    player = settings_of(context).player
    if player is None:
        raise NodeConfigError(
            f"this run asks nodes to play, and this one was not started with {AVERSION_KEY} and "
            f"{FIRST_BUDGET_KEY}: give both, with {RECORD_EPSILON_KEY} and a ledger"
        )
    if "record" not in settings_of(context).budgets:
        raise NodeConfigError(
            f"{AVERSION_KEY} is given without {RECORD_EPSILON_KEY}, the budget that a path is checked against"
        )
    path = _answer(_announcement(content), player)
    return RecordDict({GAME_RECORD: ConfigRecord({PATH: path.tolist()})})


def check_path(content: RecordDict, context: Context, terms: Terms) -> None:
    """Refuse a path that is not this client's own answer; a node without an aversion takes a given one.

    Raises:
        BudgetRefusedError: it is another path, or nothing says what it answers.
        NodeConfigError: the node begins out of range.
    """
    player = settings_of(context).player
    if player is None or not terms.has_path:
        return
    announced = _announcement(content)
    if announced.digest != terms.announced:
        raise BudgetRefusedError("the terms go by another announcement than this client was told")
    own = announced.scale * _answer(announced, player)
    if len(own) != len(terms.path) or not np.allclose(terms.path, own, rtol=ROUNDING, atol=0.0):
        raise BudgetRefusedError("the terms' path is not this client's best response to what is announced")


def _answer(announced: Announcement, player: Player) -> Floats:
    if player.first_budget is None:
        raise NodeConfigError(
            f"{AVERSION_KEY} is given without {FIRST_BUDGET_KEY}, with which a path begins: give both"
        )
    try:
        return announced.answer(player.aversion, player.first_budget)
    except GameError as error:
        raise NodeConfigError(str(error)) from None


def _announcement(content: RecordDict) -> Announcement:
    record = content.get(GAME_RECORD)
    if not isinstance(record, ConfigRecord):
        raise BudgetRefusedError(
            f"the message lacks the record {GAME_RECORD}: without what was announced no path is agreed to"
        )
    try:
        return Announcement.from_scalars(dict(record))
    except GameError as error:
        raise BudgetRefusedError(str(error)) from None
