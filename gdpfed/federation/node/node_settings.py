"""What a node was told at its start, by ``--node-config`` or by the simulation, as values of their types."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdpfed.federation.node.node_config import (
    AVERSION_KEY,
    BUDGET_LIMITS,
    CAP_KEY,
    CLIENT_ID_KEY,
    DATA_KEY,
    DELTA_KEY,
    EDGE_TRUSTED_KEY,
    EPSILON_KEY,
    FIRST_BUDGET_KEY,
    HELD_OUT_DATA_KEY,
    HELD_OUT_SHARE_KEY,
    LEDGER_COPY_KEY,
    LEDGER_KEY,
    LIMITS,
    MODE_KEY,
    OWN_SETTINGS,
    RECORD_DELTA_KEY,
    RECORD_EPSILON_KEY,
    SESSION_FILE_KEY,
    SESSION_SECONDS_KEY,
    SETTING_OF,
    NodeConfigError,
    fields_in,
    numbers_in,
)
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
# Of two members each would know the other's update, but for the noise.
DEFAULT_LIMITS: dict[str, Any] = {
    "minimum_cohort": 3,
    "minimum_bare_survivors": 3,
    "maximum_dropout_fraction": 0.5,
    # As servers have it (secagg.sparse_corrupt_fraction): a ring of two neighbours withstands nobody.
    "sparse_corrupt_fraction": 0.1,
}
# There may be two edges, or two devices of an edge that is trusted with single updates.
OF_EDGES: dict[str, Any] = {"minimum_cohort": 2, "minimum_bare_survivors": 2}
# With three members, one of whom helps a lying server, the sum of the other two has no noise to hide them.
LEAST_BARE = 4
DEFAULT_SESSION_SECONDS = 86400.0
SESSIONS_SUFFIX = ".sessions"


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node; each property reads those that it needs.

    Attributes:
        config: as they were given, checked by `check_settings`.
        simulated: whether nobody started this node, as in Flower's simulation backend.
        trains_by: the function of an app of its user's own; None for a node that trains the order's model.

    Raises:
        NodeConfigError: by a property whose settings are missing or contradict each other.
    """

    config: Mapping[str, Any]
    simulated: bool = False
    trains_by: StandIn | None = None

    @property
    def client_id(self) -> int:
        """The number of the client that this node is."""
        client_id = self.config.get(CLIENT_ID_KEY)
        if type(client_id) is not int:
            raise NodeConfigError(
                f"{CLIENT_ID_KEY} is {client_id!r}: start the node with "
                f'--node-config "{CLIENT_ID_KEY}=<number of the client, from 0>"'
            )
        return client_id

    @property
    def mode(self) -> str:
        """How much the node trusts the server: off, curious or active.

        What its operator says counts, and without a word it is curious. A node that trusts its edge is one
        that says off. Off, which lets updates leave in clear, is also the mode of a simulated node.
        """
        said = self.config.get(MODE_KEY)
        if self.trusts_edge:
            if said not in (None, OFF):
                raise NodeConfigError(
                    f"{EDGE_TRUSTED_KEY}=true lets an edge see single updates, and {MODE_KEY}={said} does "
                    "not: leave one out"
                )
            return OFF
        if said is not None:
            return str(said)
        return OFF if self.simulated else CURIOUS

    @property
    def signs(self) -> bool:
        """Whether it takes part in sums alone in which keys and survivors are signed."""
        return self.mode == ACTIVE

    @property
    def sends_in_clear(self) -> bool:
        """Whether it was started to let updates leave in clear."""
        return self.mode == OFF

    @property
    def trusts_edge(self) -> bool:
        """Whether the operator has said that the server is an edge, and trusts it with single updates."""
        return self.config.get(EDGE_TRUSTED_KEY, False) is True

    @property
    def stand_in(self) -> StandIn | None:
        """What answers in place of this node's own data, such as an edge; None for every other node.

        Raises:
            NodeConfigError: it has two.
        """
        chosen = None if self.config.keys() <= OWN_SETTINGS.keys() else stand_in_of(self.config)
        if chosen is not None and self.trains_by is not None:
            raise NodeConfigError("this node has a train function of its app's and a stand-in: leave one out")
        return chosen or self.trains_by

    @property
    def policy(self) -> ClientPolicy:
        """The node's own limits on a sum under secure aggregation, see ``LIMITS``.

        Raises:
            NodeConfigError: limits that no sum, or every sum, would meet by mistake.
        """
        limits = fields_in(self.config, LIMITS)
        usual = DEFAULT_LIMITS | ({"minimum_bare_survivors": LEAST_BARE} if self.signs else {})
        if self.stand_in is not None or self.trusts_edge:
            usual |= OF_EDGES
        try:
            return ClientPolicy(**(usual | limits), mode=self.mode)
        except ValueError as error:
            raise NodeConfigError(f"the limits of this node: {error}") from None

    @property
    def session_file(self) -> Path | None:
        """The file with the keys of open sessions; beside the ledger unless named, None without both."""
        return self.path(SESSION_FILE_KEY) or self.kept_beside(SESSIONS_SUFFIX)

    @property
    def session_seconds(self) -> float:
        """How long a session may stay open."""
        return float(self.config.get(SESSION_SECONDS_KEY, DEFAULT_SESSION_SECONDS))

    @property
    def data(self) -> OwnData | None:
        """Where the node's own examples lie; None where the partition names them.

        Raises:
            NodeConfigError: something is held out of data that the node does not have.
        """
        path, held_out = self.path(DATA_KEY), self.path(HELD_OUT_DATA_KEY)
        share = float(self.config.get(HELD_OUT_SHARE_KEY, 0.0))
        if path is None and (held_out is not None or share):
            raise NodeConfigError(
                f"{HELD_OUT_DATA_KEY} and {HELD_OUT_SHARE_KEY} are about a node's own examples: give "
                f"{DATA_KEY} as well"
            )
        if held_out is not None and share:
            raise NodeConfigError(
                f"{HELD_OUT_DATA_KEY} and {HELD_OUT_SHARE_KEY} both say what is held out: leave one out"
            )
        return None if path is None else OwnData(path, held_out, share)

    def own_terms(self, terms: Terms) -> Terms:
        """Return terms with what the node's own data says of them, whatever the server says.

        Raises:
            LearningError: a table without a declaration.
            NodeConfigError: its persons may be at more parties than the terms pay for.
        """
        own = self.data
        if not isinstance(terms, RecordBudgets) or own is None:
            return replace(terms, held_out_by="", record_is="")
        parties = own.person_parties
        if terms.parties < parties:
            raise NodeConfigError(
                f"a person may be at {parties} parties by this node's own declaration, and the terms pay for "
                f"{terms.parties}: the server's declaration must say as many"
            )
        return replace(terms, held_out_by=own.rule if terms.held_out else "", record_is=person_words(parties))

    def path(self, key: str) -> Path | None:
        """The path that a setting gives; None without it."""
        return Path(str(self.config[key])).expanduser() if key in self.config else None

    def kept_beside(self, suffix: str) -> Path | None:
        """A file beside the ledger, or else the file of sessions; None for a node that keeps neither."""
        kept = self.path(LEDGER_KEY) or self.path(SESSION_FILE_KEY)
        return None if kept is None else kept.with_name(kept.name + suffix)

    @property
    def budgets(self) -> Budgets:
        """The node's own budgets by unit; none for a node that leaves them to the server's configuration.

        The keys are ``epsilon``, of the client, or ``epsilon-record``, of its records, and ``ledger``, which
        belong together, and with them ``delta``, ``delta-record`` and those of ``BUDGET_LIMITS``.

        Raises:
            NodeConfigError: keys without those they need.
        """
        config = self.config
        given = [key for key in BUDGET_KEYS if key in config]
        if not given:
            return {}
        self._check_budget_keys(given[0])
        delta = float(config.get(DELTA_KEY, DEFAULT_DELTA))
        deltas: Mapping[Unit, float] = {
            "client": delta,
            "record": float(config.get(RECORD_DELTA_KEY, delta)),
        }
        return {
            unit: Budget(
                epsilons=numbers_in(config[key]),
                delta=deltas[unit],
                ledger=Path(str(config[LEDGER_KEY])).expanduser(),
                ledger_copy=self.path(LEDGER_COPY_KEY),
                edge_trusted=self.trusts_edge,
                **fields_in(config, BUDGET_LIMITS),
            )
            for unit, key in SETTING_OF.items()
            if key in config
        }

    def _check_budget_keys(self, given: str) -> None:
        """Refuse a setting of a budget without those that it needs."""
        config = self.config
        epsilons = [key for key in SETTING_OF.values() if key in config]
        for key, missing in ((EPSILON_KEY, not epsilons), (LEDGER_KEY, LEDGER_KEY not in config)):
            if missing:
                raise NodeConfigError(
                    f"{given} is given without {key}: a budget of the node's own needs {EPSILON_KEY} or "
                    f"{RECORD_EPSILON_KEY} and, to remember what is spent, {LEDGER_KEY}, as in "
                    f"--node-config \"{EPSILON_KEY}=3.0 {LEDGER_KEY}='/state/ledger.json'\""
                )
        if RECORD_DELTA_KEY in config and RECORD_EPSILON_KEY not in config:
            raise NodeConfigError(
                f"{RECORD_DELTA_KEY} is given without {RECORD_EPSILON_KEY}, the budget that it belongs to"
            )
        if CAP_KEY in config and self.trusts_edge:
            raise NodeConfigError(
                f"{CAP_KEY} is a limit against the server, and {EDGE_TRUSTED_KEY}=true trusts it: leave one "
                "out"
            )

    @property
    def player(self) -> Player | None:
        """What the node answers games and prices with; None for one that was started without an aversion.

        Raises:
            NodeConfigError: a first budget without an aversion.
        """
        config = self.config
        if AVERSION_KEY not in config:
            if FIRST_BUDGET_KEY in config:
                raise NodeConfigError(
                    f"{FIRST_BUDGET_KEY} is given without {AVERSION_KEY}, which it plays with"
                )
            return None
        first = config.get(FIRST_BUDGET_KEY)
        return Player(float(config[AVERSION_KEY]), None if first is None else float(first))


@dataclass(frozen=True)
class Node:
    """One node of a run.

    Attributes:
        settings: what it was told at its start.
        state: what it keeps from message to message of this run; records of plain values by name.
        run: by which the transport knows the run.
    """

    settings: NodeSettings
    state: MutableMapping[str, Mapping[str, Any]]
    run: str
