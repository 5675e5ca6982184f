"""The settings of a node, given at its start by ``--node-config`` or by the simulation."""

import math
from collections.abc import Mapping
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.common.logger import log

from client_app.simulation_backend import in_flowers_simulation
from edge_app.edge_client import Bridge
from gdpfed.clients.messages import CLIENTS, COLUMNS, INPUT_DTYPE, INPUT_SHAPE, LABEL_DTYPE, UNIT
from gdpfed.errors import LearningError
from gdpfed.federation.node.node_config import (
    AVERSION_KEY,
    CAP_KEY,
    CLIENT_ID_KEY,
    DATA_KEY,
    DELTA_KEY,
    EDGE_KEY,
    EDGE_SECONDS_KEY,
    EDGE_TRUSTED_KEY,
    EPSILON_KEY,
    FIRST_BUDGET_KEY,
    LEDGER_KEY,
    LIMITS,
    MODE_KEY,
    MOST_ROUNDS_KEY,
    RAISED_KEY,
    RECORD_DELTA_KEY,
    RECORD_EPSILON_KEY,
    SESSION_FILE_KEY,
    SESSION_SECONDS_KEY,
    SETTING_OF,
    numbers_in,
)
from gdpfed.federation.node.node_config import NodeConfigError as NodeConfigError
from gdpfed.federation.node.own_budget import Budget, Budgets, Player
from gdpfed.learning.data.own import INPUT_DTYPES, LABEL_DTYPES, own_arrays, read_own
from gdpfed.privacy.events import Unit
from secagg import ClientPolicy
from secagg.protocol.parameters import ACTIVE, CURIOUS, OFF

DEFAULT_DELTA = 1e-5
DEFAULT_LIMITS: dict[str, Any] = {"minimum_cohort": 2, "maximum_dropout_fraction": 0.5}
# With three members, one of whom helps a lying server, the sum of the other two has no noise to hide them.
LEAST_BARE = 4
DEFAULT_SESSION_SECONDS = 86400.0
DEFAULT_EDGE_SECONDS = 600.0
SESSIONS_SUFFIX = ".sessions"
BUDGET_KEYS = (
    *(EPSILON_KEY, RECORD_EPSILON_KEY, LEDGER_KEY, DELTA_KEY, RECORD_DELTA_KEY),
    *(CAP_KEY, MOST_ROUNDS_KEY, RAISED_KEY, AVERSION_KEY, FIRST_BUDGET_KEY),
)


def client_id_of(context: Context) -> int:
    """Return the number of the client that this node is.

    Raises:
        NodeConfigError: the node was started without ``partition-id``.
    """
    client_id = context.node_config.get(CLIENT_ID_KEY)
    if type(client_id) is not int:
        raise NodeConfigError(
            f"{CLIENT_ID_KEY} is {client_id!r}: start the node with "
            f'--node-config "{CLIENT_ID_KEY}=<number of the client, from 0>"'
        )
    return client_id


def mode_of(context: Context) -> str:
    """Return how much the node trusts the server: off, curious or active.

    What its operator says counts, and without a word it is curious. A node that trusts its edge is one that
    says off. Off, which lets updates leave in clear,
    is also the mode of a node of Flower's simulation backend, which nobody starts.
    """
    said = context.node_config.get(MODE_KEY)
    if trusts_edge(context):
        if said not in (None, OFF):
            raise NodeConfigError(
                f"{EDGE_TRUSTED_KEY}=true lets an edge see single updates, and {MODE_KEY}={said} does not: "
                "leave one out"
            )
        return OFF
    if said is not None:
        return str(said)
    return OFF if in_flowers_simulation() else CURIOUS


def trusts_edge(context: Context) -> bool:
    """Whether the node's operator has said that its server is an edge, and trusts it with single updates."""
    return context.node_config.get(EDGE_TRUSTED_KEY, False) is True


def bridge_of(context: Context) -> Bridge | None:
    """The bridge that this node is, between an edge's run and the cloud; None for every other node.

    Raises:
        NodeConfigError: a bridge with data or a budget, which are its edge's devices' own.
    """
    config = context.node_config
    if EDGE_KEY not in config:
        return None
    other = [key for key in (*BUDGET_KEYS, DATA_KEY, EDGE_TRUSTED_KEY) if key in config]
    if other:
        raise NodeConfigError(
            f"{EDGE_KEY} makes this node the bridge of an edge, and {other[0]} is for a device: leave one out"
        )
    seconds = float(config.get(EDGE_SECONDS_KEY, DEFAULT_EDGE_SECONDS))
    return Bridge(Path(str(config[EDGE_KEY])).expanduser(), seconds)


def policy_of(context: Context) -> ClientPolicy:
    """The node's own limits on a sum under secure aggregation, see ``LIMITS``.

    Raises:
        NodeConfigError: limits that no sum, or every sum, would meet by mistake.
    """
    config = context.node_config
    limits: dict[str, Any] = {key.replace("-", "_"): config[key] for key in LIMITS if key in config}
    mode = mode_of(context)
    usual = DEFAULT_LIMITS | ({"minimum_bare_survivors": LEAST_BARE} if mode == ACTIVE else {})
    try:
        return ClientPolicy(**(usual | limits), mode=mode)
    except ValueError as error:
        raise NodeConfigError(f"the limits of this node: {error}") from None


def session_file_of(context: Context) -> Path | None:
    """The file with the keys of open sessions; beside the ledger unless named, None without both."""
    config = context.node_config
    if SESSION_FILE_KEY in config:
        return Path(str(config[SESSION_FILE_KEY])).expanduser()
    return kept_beside(context, SESSIONS_SUFFIX)


def kept_beside(context: Context, suffix: str) -> Path | None:
    """A file beside the ledger, or else the file of sessions; None for a node that keeps neither."""
    for key in (LEDGER_KEY, SESSION_FILE_KEY):
        if key in context.node_config:
            kept = Path(str(context.node_config[key])).expanduser()
            return kept.with_name(kept.name + suffix)
    return None


def session_seconds_of(context: Context) -> float:
    """How long a session may stay open."""
    return float(context.node_config.get(SESSION_SECONDS_KEY, DEFAULT_SESSION_SECONDS))


def budgets_of(context: Context) -> Budgets:
    """The node's own budgets by unit; none for a node that leaves them to the server's configuration.

    The keys are ``epsilon``, of the client, or ``epsilon-record``, of its records, and ``ledger``, which
    belong together, and with them ``delta``, ``delta-record``, ``max-epsilon-against-server`` and
    ``max-participations``.

    Raises:
        NodeConfigError: keys without those they need.
    """
    config = context.node_config
    given = [key for key in BUDGET_KEYS if key in config]
    if not given:
        return {}
    epsilons = [key for key in SETTING_OF.values() if key in config]
    for key, missing in ((EPSILON_KEY, not epsilons), (LEDGER_KEY, LEDGER_KEY not in config)):
        if missing:
            raise NodeConfigError(
                f"{given[0]} is given without {key}: a budget of the node's own needs {EPSILON_KEY} or "
                f"{RECORD_EPSILON_KEY} and, to remember what is spent, {LEDGER_KEY}, as in "
                f"--node-config \"{EPSILON_KEY}=3.0 {LEDGER_KEY}='/state/ledger.json'\""
            )
    if RECORD_DELTA_KEY in config and RECORD_EPSILON_KEY not in config:
        raise NodeConfigError(
            f"{RECORD_DELTA_KEY} is given without {RECORD_EPSILON_KEY}, the budget that it belongs to"
        )
    if CAP_KEY in config and trusts_edge(context):
        raise NodeConfigError(
            f"{CAP_KEY} is a limit against the server, and {EDGE_TRUSTED_KEY}=true trusts it: leave one out"
        )
    delta = float(config.get(DELTA_KEY, DEFAULT_DELTA))
    deltas: Mapping[Unit, float] = {"client": delta, "record": float(config.get(RECORD_DELTA_KEY, delta))}
    return {
        unit: Budget(
            epsilons=numbers_in(config[key]),
            delta=deltas[unit],
            ledger=Path(str(config[LEDGER_KEY])).expanduser(),
            max_epsilon_against_server=float(config.get(CAP_KEY, math.inf)),
            max_participations=float(config.get(MOST_ROUNDS_KEY, math.inf)),
            edge_trusted=trusts_edge(context),
            raised_from=float(config.get(RAISED_KEY, 0.0)),
        )
        for unit, key in SETTING_OF.items()
        if key in config
    }


def player_of(context: Context) -> Player | None:
    """What the node answers games and prices with; None for one that was started without an aversion.

    Raises:
        NodeConfigError: a first budget without an aversion.
    """
    config = context.node_config
    if AVERSION_KEY not in config:
        if FIRST_BUDGET_KEY in config:
            raise NodeConfigError(f"{FIRST_BUDGET_KEY} is given without {AVERSION_KEY}, which it plays with")
        return None
    first = config.get(FIRST_BUDGET_KEY)
    return Player(float(config[AVERSION_KEY]), None if first is None else float(first))


def data_of(context: Context) -> Path | None:
    """The file or folder with the node's own examples; None where the data set's partition names them."""
    path = context.node_config.get(DATA_KEY)
    return None if path is None else Path(str(path)).expanduser()


def check_limits(context: Context, question: ConfigRecord) -> None:
    """Refuse to join a run whose largest sum is too small for this node, before it charges in vain.

    Raises:
        NodeConfigError: the run has fewer clients than this node's smallest sum.
    """
    least, clients = policy_of(context).minimum_cohort, question.get(CLIENTS)
    if type(clients) is int and clients < least:
        raise NodeConfigError(
            f"minimum-cohort is {least}, and this run has {clients} clients: no sum would be large enough"
        )


def unit_in(question: ConfigRecord) -> Unit:
    """Whose presence the run protects that a node is asked to join."""
    return "record" if question.get(UNIT) == "record" else "client"


def own_records(context: Context, question: ConfigRecord) -> int | None:
    """Return how many examples the node brings itself; None where the data set's partition names them.

    It refuses to join with examples that the run cannot be trained on; why is in the node's log alone.

    The server says the shape and the kind of an input, the kind of a label, and what names the declaration of
    its table, which this node's own is compared with. It cannot ask which labels there are: by asking with
    one number of classes after another it would learn of the data.

    Raises:
        NodeConfigError: without anything that might tell of the data, or that there is none for a run that
            protects records, whose number is public.
    """
    path = data_of(context)
    if path is None:
        return None
    shape, dtype = question.get(INPUT_SHAPE), question.get(INPUT_DTYPE)
    try:
        if isinstance(shape, list) and dtype in INPUT_DTYPES:
            label_dtype, columns = question.get(LABEL_DTYPE), question.get(COLUMNS)
            if label_dtype not in LABEL_DTYPES:
                label_dtype = LABEL_DTYPES[0]
            kinds = str(dtype), str(label_dtype), str(columns or "") or None
            records = len(own_arrays(path, [int(each) for each in shape], *kinds))
        else:
            records = len(read_own(path)[1])
    except LearningError as error:
        log(ERROR, "%s", error)
        raise NodeConfigError(f"{DATA_KEY} cannot be used, see the log of this client") from None
    if not records and unit_in(question) == "record":
        raise NodeConfigError(
            f"{DATA_KEY} is without records, and this run protects records: bring at least one, or stay away"
        )
    return records
