"""A node's own privacy budgets, and its preferences for choosing a budget in a game or for a price."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from gdpfed.federation.node.node_config import BudgetLimits
from gdpfed.privacy.events import Unit

BUDGET_KEYS = (
    *("epsilon", "epsilon-record", "ledger", "ledger-copy", "delta", "delta-record"),
    *(field.name.replace("_", "-") for field in fields(BudgetLimits)),
    *("aversion", "first-budget"),
)
"""The settings of a node that go with a budget of its own."""


@dataclass(frozen=True)
class Budget:
    """The node's privacy budget over all runs that protect a client, or over all runs that protect a record.

    Attributes:
        epsilons, delta: against everybody who does not know in which rounds it took part: one number, or
            one for every group of its records.
        ledger: where it keeps what it has agreed to.
        max_epsilon_against_server: against the server, which asks it and so knows; inf for no limit.
        max_participations: rounds of one run in which it sends updates at most; inf for no limit.
        min_separation: how many rounds of one run lie from one update to the next at least; 1 for no limit.
        ledger_copy: the folder in which the ledger is written a second time; None for no such.
        edge_trusted: whether the server is an edge that may see single updates, and adds the noise.
        raised_from: the operator's word that this budget is above that of the ledger's last run: the first
            number that was raised, of the epsilons and delta, as it was; 0 without one.
        lost_rounds: the operator's word that the ledger lacks at most this number of rounds in which the
            server has received updates, and that their cost was taken off the budget; 0 without one.
    """

    epsilons: tuple[float, ...]
    delta: float
    ledger: Path
    max_epsilon_against_server: float = math.inf
    max_participations: float = math.inf
    min_separation: int = 1
    ledger_copy: Path | None = None
    edge_trusted: bool = False
    raised_from: float = 0.0
    lost_rounds: int = 0

    @property
    def places(self) -> tuple[Path, Path | None]:
        """The paths of this budget's ledger and of the ledger's copy."""
        return self.ledger, self.ledger_copy

    @property
    def epsilon(self) -> float:
        """The budget's epsilon; the smallest one if groups of records have different epsilons."""
        return min(self.epsilons)


@dataclass(frozen=True)
class Player:
    """What a client prefers when it chooses its budget in a game with other clients, or at an offered price.

    These numbers stay on the node.

    Attributes:
        aversion: c_i in (0, 1), the weight of its privacy cost.
        first_budget: rho_i^0, with which its path begins; None for one that answers prices only.
    """

    aversion: float
    first_budget: float | None


Budgets = Mapping[Unit, Budget]
"""What a node has of its own; in one ledger, and never added up."""
