"""The settings of a node, given at its start by ``--node-config`` or by the simulation."""

import math
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log

from gdpfed.errors import InputError, LearningError
from gdpfed.learning.datasets.own import read_own
from secagg import ClientPolicy

CLIENT_ID_KEY = "partition-id"
EPSILON_KEY = "epsilon"
DELTA_KEY = "delta"
LEDGER_KEY = "ledger"
CAP_KEY = "max-epsilon-against-server"
DATA_KEY = "data"

DEFAULT_DELTA = 1e-5


class NodeConfigError(InputError):
    """A node configuration that cannot be used; the message names the key and the remedy."""


@dataclass(frozen=True)
class Budget:
    """The budget of this client for all runs together.

    Attributes:
        epsilon, delta: against everybody who does not know in which rounds it took part.
        ledger: where it keeps what it has agreed to.
        max_epsilon_against_server: against the server, which asks it and so knows; inf for no limit.
    """

    epsilon: float
    delta: float
    ledger: Path
    max_epsilon_against_server: float = math.inf


def client_id_of(context: Context) -> int:
    """Return the number of the client that this node is.

    Raises:
        NodeConfigError: the node was started without ``partition-id``.
    """
    client_id = context.node_config.get(CLIENT_ID_KEY)
    if not isinstance(client_id, int) or client_id < 0:
        raise NodeConfigError(
            f"{CLIENT_ID_KEY} is {client_id!r}: start the node with "
            f'--node-config "{CLIENT_ID_KEY}=<number of the client, from 0>"'
        )
    return client_id


def policy_of(context: Context) -> ClientPolicy:
    """The node's own limits on a sum.

    The keys are ``minimum-cohort``, ``maximum-dropout-fraction``, ``minimum-noise-multiplier``,
    ``secagg-mode`` (active refuses sums without signatures) and ``corrupt-fraction`` (what a sparse
    graph must withstand).
    """
    config = context.node_config
    return ClientPolicy(
        minimum_cohort=int(config.get("minimum-cohort", 2)),
        maximum_dropout_fraction=float(config.get("maximum-dropout-fraction", 0.5)),
        minimum_noise_multiplier=float(config.get("minimum-noise-multiplier", 0.0)),
        mode=str(config.get("secagg-mode", "curious")),
        corrupt_fraction=float(config.get("corrupt-fraction", 0.0)),
    )


def budget_of(context: Context) -> Budget | None:
    """The node's own budget; None for a node that leaves it to the server's configuration.

    The keys are ``epsilon`` and ``ledger``, which belong together, and with them ``delta`` and
    ``max-epsilon-against-server``.

    Raises:
        NodeConfigError: keys without those they need, or values that are no budget.
    """
    config = context.node_config
    given = [key for key in (EPSILON_KEY, LEDGER_KEY, DELTA_KEY, CAP_KEY) if key in config]
    if not given:
        return None
    for key in (EPSILON_KEY, LEDGER_KEY):
        if key not in config:
            raise NodeConfigError(
                f"{given[0]} is given without {key}: a budget of the node's own needs {EPSILON_KEY} and, to "
                f"remember what is spent, {LEDGER_KEY}, as in "
                f"--node-config \"{EPSILON_KEY}=3.0 {LEDGER_KEY}='/state/ledger.json'\""
            )
    return Budget(
        epsilon=_number(context, EPSILON_KEY, math.inf),
        delta=_number(context, DELTA_KEY, 1.0) if DELTA_KEY in config else DEFAULT_DELTA,
        ledger=Path(str(config[LEDGER_KEY])).expanduser(),
        max_epsilon_against_server=_number(context, CAP_KEY, math.inf) if CAP_KEY in config else math.inf,
    )


def data_of(context: Context) -> Path | None:
    """The file or folder with the node's own examples; None where the data set's partition names them."""
    path = context.node_config.get(DATA_KEY)
    return None if path is None else Path(str(path)).expanduser()


def check_data(context: Context) -> None:
    """Refuse to join with a file of examples that cannot be read; why is in the node's log alone.

    Raises:
        NodeConfigError: without anything that might tell of the data.
    """
    path = data_of(context)
    if path is None:
        return
    try:
        read_own(path)
    except LearningError as error:
        log(ERROR, "%s", error)
        raise NodeConfigError(f"{DATA_KEY} cannot be used, see the log of this client") from None


def _number(context: Context, key: str, below: float) -> float:
    value = context.node_config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        raise NodeConfigError(f"{key} is {value!r}: give a number above 0 and below {below:g}")
    return float(value)
