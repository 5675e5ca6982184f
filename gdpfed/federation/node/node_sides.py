"""Plug-in point of nodes: a plug-in can answer a server's requests, and check the conditions of a run.

A side has two ends, this one and `gdpfed.federation.server.server_sides`, found by one name. What the server
tells lies in messages as a record of that name.
"""

from collections.abc import Mapping
from typing import Any

from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.own_budget import Budget, Budgets, Player
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.registry import Registry

Values = Mapping[str, Any]


class NodeSide:
    """A plug-in's part on the node; by default, it answers no request and refuses nothing."""

    def answer(self, told: Values, player: Player | None, budgets: Budgets) -> dict[str, Any]:
        """Return the node's answer to values that the server's plug-in sent, as a flat dictionary.

        Raises:
            NodeConfigError: it was not started for that.
        """
        raise NodeConfigError(
            "the server asks a question that this node cannot answer: install the same version on both"
        )

    def said_epsilon(self, told: Values, player: Player | None, budget: Budget) -> float:
        """Return the epsilon that this node states when it joins a run; by default, its whole budget."""
        return budget.epsilon

    def check_terms(self, told: Values | None, player: Player | None, budget: Budget, terms: Terms) -> None:
        """Raise BudgetRefusedError if a run's conditions differ from this node's answer to a server plug-in.

        `told`: the values that the server's plug-in sent.
        """


NODE_SIDES: Registry[type[NodeSide]] = Registry(
    "node side",
    "gdpfed.node_sides",
    error=NodeConfigError,
)
