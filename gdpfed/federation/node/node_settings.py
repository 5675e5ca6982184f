"""The settings of a node as typed values, from ``--node-config`` or a simulation."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gdpfed.federation.node.node_config import (
    OWN_SETTINGS,
    BudgetLimits,
    NodeConfig,
    NodeConfigError,
    SumLimits,
)
from gdpfed.federation.node.node_file import SESSIONS
from gdpfed.federation.node.own_budget import BUDGET_KEYS, Budget, Budgets, Player
from gdpfed.federation.node.stand_ins import StandIn, stand_in_of
from gdpfed.learning.data.own import OwnData
from gdpfed.privacy.events import Unit
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import RecordBudgets
from gdpfed.record_steps import person_words
from secagg import ClientPolicy
from secagg.protocol.parameters import ACTIVE, CURIOUS, OFF

DEFAULT_DELTA = 1e-5
# In a sum of two members, each member knows the other's update, apart from the noise.
DEFAULT_LIMITS: dict[str, Any] = {
    "minimum_cohort": 3,
    "minimum_bare_survivors": 3,
    "maximum_dropout_fraction": 0.5,
    # The server's default, too: with 0, a graph may be a ring, which withstands no corrupt member.
    "sparse_corrupt_fraction": 0.1,
}
# A run may have only two edges, and a trusted edge may have only two devices.
OF_EDGES: dict[str, Any] = {"minimum_cohort": 2, "minimum_bare_survivors": 2}
# In a sum of three without noise, a lying server and one member learn the sum of only two updates.
LEAST_BARE = 4
DEFAULT_SESSION_SECONDS = 86400.0


@dataclass(frozen=True)
class NodeSettings:
    """The settings that one node was started with.

    Attributes:
        config: the settings as given, also those of stand-ins; `check_settings` has accepted them.
        simulated: whether Flower's simulation backend started this node, and not an operator.
        trains_by: the train function of a user's app; None for a node that trains the order's model.

    A property raises NodeConfigError if its settings are missing or contradict each other.
    """

    config: Mapping[str, Any]
    simulated: bool = False
    trains_by: StandIn | None = None

    @cached_property
    def given(self) -> NodeConfig:
        """The settings that were given at the node's start, as typed values."""
        return NodeConfig.of(self.config)

    @property
    def client_id(self) -> int:
        """The number of the client that this node answers for."""
        client_id = self.given.partition_id
        if client_id is None:
            raise NodeConfigError(
                "partition-id is None: start the node with "
                '--node-config "partition-id=<number of the client, from 0>"'
            )
        return client_id

    @property
    def mode(self) -> str:
        """How much the node trusts the server in secure aggregation: off, curious or active.

        It is the operator's secagg-mode; the default is curious, and off for a simulated node. With
        edge-trusted=true it is off. The mode off allows the node to send updates in clear.
        """
        said = self.given.secagg_mode
        if self.trusts_edge:
            if said not in (None, OFF):
                raise NodeConfigError(
                    f"edge-trusted=true lets an edge see single updates, and secagg-mode={said} does not: "
                    "leave one out"
                )
            return OFF
        if said is not None:
            return said
        return OFF if self.simulated else CURIOUS

    @property
    def signs(self) -> bool:
        """Whether the node joins only sums in which all members sign their keys and the survivors' list."""
        return self.mode == ACTIVE

    @property
    def sends_in_clear(self) -> bool:
        """Whether the operator allows this node to send updates without masks."""
        return self.mode == OFF

    @property
    def trusts_edge(self) -> bool:
        """Whether the operator says that the server is an edge server, which may see single updates."""
        return self.given.edge_trusted is True

    @property
    def stand_in(self) -> StandIn | None:
        """The object that gives updates in place of the node's own data, such as an edge server; else None.

        Raises NodeConfigError: it has two.
        """
        chosen = None if self.config.keys() <= OWN_SETTINGS.keys() else stand_in_of(self.config)
        if chosen is not None and self.trains_by is not None:
            raise NodeConfigError("an app's train function and a setting like edge are given: leave one out")
        return chosen or self.trains_by

    @property
    def policy(self) -> ClientPolicy:
        """The node's own limits on sums under secure aggregation.

        Raises NodeConfigError: no sum, or every sum, would keep the limits.
        """
        usual = DEFAULT_LIMITS | ({"minimum_bare_survivors": LEAST_BARE} if self.signs else {})
        if self.stand_in is not None or self.trusts_edge:
            usual |= OF_EDGES
        try:
            return ClientPolicy(**(usual | self.given.fields_of(SumLimits)), mode=self.mode)
        except ValueError as error:
            raise NodeConfigError(f"the limits of this node: {error}") from None

    @property
    def session_file(self) -> Path | None:
        """The file with the keys of open secure-aggregation sessions: as configured, or beside the ledger."""
        return self.given.session_file or self.kept_beside(SESSIONS)

    @property
    def session_seconds(self) -> float:
        """How many seconds a session of secure aggregation may stay open."""
        seconds = self.given.session_seconds
        return DEFAULT_SESSION_SECONDS if seconds is None else seconds

    @property
    def data(self) -> OwnData | None:
        """Where the node's own examples are, or None if it trains on a part of the run's data set.

        Raises NodeConfigError: examples are to be held out, and data is missing, or two settings say which.
        """
        path, held_out = self.given.data, self.given.held_out_data
        share = self.given.held_out_share or 0.0
        if path is None and (held_out is not None or share):
            raise NodeConfigError(
                "held-out-data and held-out-share are about a node's own examples: give data as well"
            )
        if held_out is not None and share:
            raise NodeConfigError("held-out-data and held-out-share both say what is held out: leave one out")
        return None if path is None else OwnData(path, held_out, share)

    def own_terms(self, terms: Terms, dealt_by: str = "") -> Terms:
        """Return a run's terms with this node's own rules on held-out examples and on what a record is.

        `dealt_by`: what decides in which group each of its records is.

        Raises:
            LearningError: the data is a table without a declaration.
            NodeConfigError: the data's persons may be at more parties than the terms allow for.
        """
        own = self.data
        if not isinstance(terms, RecordBudgets) or own is None:
            return replace(terms, held_out_by="", record_is="", dealt_by="")
        parties = own.person_parties
        if terms.parties < parties:
            raise NodeConfigError(
                f"by this node's columns a person may be at {parties} parties, and the run is charged for "
                f"{terms.parties}: the server's columns must state as many"
            )
        held_out_by = own.rule if terms.held_out else ""
        return replace(terms, held_out_by=held_out_by, record_is=person_words(parties), dealt_by=dealt_by)

    def kept_beside(self, suffix: str) -> Path | None:
        """Return the path of a file beside the node's ledger or session file; None if there is neither."""
        kept = self.given.ledger or self.given.session_file
        return None if kept is None else kept.with_name(kept.name + suffix)

    @property
    def budgets(self) -> Budgets:
        """The node's own privacy budgets, for clients and for records; empty if its operator gave none.

        A budget needs ``epsilon`` (for the client) or ``epsilon-record`` (for its records), and ``ledger``.
        Optional are ``delta``, ``delta-record`` and the settings of `BudgetLimits`. Raises NodeConfigError: a
        setting is given without another one that it needs.
        """
        given, first = self.given, next((key for key in BUDGET_KEYS if key in self.config), None)
        if first is None:
            return {}
        ledger = self._checked_ledger(first)
        delta = DEFAULT_DELTA if given.delta is None else given.delta
        budgets: dict[Unit, tuple[tuple[float, ...] | None, float]] = {
            "client": (None if given.epsilon is None else (given.epsilon,), delta),
            "record": (given.epsilon_record, delta if given.delta_record is None else given.delta_record),
        }
        return {
            unit: Budget(
                epsilons=epsilons,
                delta=delta_of_unit,
                ledger=ledger,
                ledger_copy=given.ledger_copy,
                edge_trusted=self.trusts_edge,
                **given.fields_of(BudgetLimits),
            )
            for unit, (epsilons, delta_of_unit) in budgets.items()
            if epsilons is not None
        }

    def _checked_ledger(self, first: str) -> Path:
        """Return the path of the ledger; raise NodeConfigError if the settings of a budget are incomplete."""
        given = self.given
        lacking = "epsilon" if given.epsilon is None and given.epsilon_record is None else "ledger"
        if lacking == "epsilon" or given.ledger is None:
            raise NodeConfigError(
                f"{first} is given without {lacking}: a budget of the node's own needs epsilon or "
                "epsilon-record and, to remember what is spent, ledger, as in "
                "--node-config \"epsilon=3.0 ledger='/state/ledger.json'\""
            )
        if given.delta_record is not None and given.epsilon_record is None:
            raise NodeConfigError(
                "delta-record is given without epsilon-record, the budget that it belongs to: give both"
            )
        if given.max_epsilon_against_server is not None and self.trusts_edge:
            raise NodeConfigError(
                "max-epsilon-against-server is a limit against the server, and edge-trusted=true trusts it: "
                "leave one out"
            )
        return given.ledger

    @property
    def player(self) -> Player | None:
        """The node's preferences for choosing its budget in a game or for a price; None if it has none.

        Raises NodeConfigError: first-budget is given without aversion.
        """
        aversion, first = self.given.aversion, self.given.first_budget
        if aversion is None:
            if first is not None:
                raise NodeConfigError(
                    "first-budget is given without aversion, and a game needs both: give both"
                )
            return None
        return Player(aversion, first)


@dataclass(frozen=True)
class Node:
    """One node in a run: its settings, and the state that it keeps between messages.

    Attributes:
        settings: the settings that it was started with.
        state: what it keeps between the messages of this run: records of plain values, by name.
        run: the transport's id of the run.
    """

    settings: NodeSettings
    state: MutableMapping[str, Mapping[str, Any]]
    run: str
