"""Joining: each node says which client it is and what budget it has, before anything is charged."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from gdpfed.clients.messages import CLIENT_RECORD, JOIN
from gdpfed.errors import RunError
from server_app.exchange import failure_of
from server_app.replies import send_and_receive

SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class OwnBudget:
    """A client's own budget, as the client states it."""

    epsilon: float
    delta: float


@dataclass
class Joined:
    """The nodes of a run.

    Attributes:
        nodes: the node id of every client.
        roster: the public identity key of every client, empty but in active mode.
        budgets: the budgets of clients that have one of their own.
    """

    nodes: dict[int, int] = field(default_factory=dict)
    roster: dict[int, bytes] = field(default_factory=dict)
    budgets: dict[int, OwnBudget] = field(default_factory=dict)

    def add(self, reply: Message) -> None:
        """Take in one node's answer.

        Raises:
            RunError: it refuses, or says it is a client that another node is.
        """
        node_id, record = reply.metadata.src_node_id, reply.content.get(CLIENT_RECORD)
        refusal = failure_of(reply)
        if refusal is not None:
            raise RunError(f"SuperNode {node_id} does not join: {refusal}")
        client_id = record.get("client_id") if isinstance(record, ConfigRecord) else None
        if not isinstance(record, ConfigRecord) or not isinstance(client_id, int):
            return
        if client_id in self.nodes:
            raise RunError(f"two SuperNodes say they are client {client_id}: set partition-id apart")
        self.nodes[client_id] = node_id
        identity, epsilon, delta = (record.get(key) for key in ("identity", "epsilon", "delta"))
        if isinstance(identity, bytes):
            self.roster[client_id] = identity
        if isinstance(epsilon, float) and isinstance(delta, float):
            self.budgets[client_id] = OwnBudget(epsilon, delta)


def join_clients(
    grid: Grid, num_clients: int, mode: str, timeout_seconds: float, minimum_nodes: int | None = None
) -> Joined:
    """Wait for the nodes and ask each which client it is, its budget and, in active mode, its key.

    Returns:
        What they say, with a node for every client id in ``range(num_clients)``, or for ``minimum_nodes``
        of them if fewer are enough.

    Raises:
        RunError: too few or too many nodes, one that refuses or does not answer, or two that are the same.
    """
    enough = min(num_clients, minimum_nodes or num_clients)
    node_ids = _settled_nodes(grid, num_clients, enough, timeout_seconds)
    joined = Joined()
    for reply in ask_which_clients(grid, node_ids, mode, timeout_seconds):
        joined.add(reply)
    missing = [client_id for client_id in range(num_clients) if client_id not in joined.nodes]
    if num_clients - len(missing) < enough:
        raise RunError(
            f"no SuperNode says it is client {missing[0]} ({len(missing)} of {num_clients} clients are "
            "missing): each must be up, with a partition-id from 0 to dataset.num_clients - 1"
        )
    return joined


def ask_which_clients(
    grid: Grid, node_ids: Collection[int], mode: str, timeout_seconds: float
) -> list[Message]:
    """Ask nodes which clients they are; a node that could not be reached counts as missing."""
    log(INFO, "asking %d SuperNodes which clients they are", len(node_ids))
    question = RecordDict({CLIENT_RECORD: ConfigRecord({"mode": mode})})
    messages = [Message(question, node_id, f"query.{JOIN}") for node_id in node_ids]
    replies = send_and_receive(grid, messages, timeout_seconds)
    return [reply for reply in replies if not reply.has_error()]


def _settled_nodes(grid: Grid, num_clients: int, enough: int, timeout_seconds: float) -> list[int]:
    """Node ids once there are enough, or once their number has stopped growing."""
    started = changed = time.monotonic()
    node_ids = list(grid.get_node_ids())
    while len(node_ids) < num_clients and time.monotonic() - started < timeout_seconds:
        time.sleep(POLL_SECONDS)
        now = list(grid.get_node_ids())
        if len(now) != len(node_ids):
            changed = time.monotonic()
        node_ids = now
        if node_ids and time.monotonic() - changed > SETTLE_SECONDS:
            break
    if not enough <= len(node_ids) <= num_clients:
        raise RunError(
            f"{len(node_ids)} SuperNodes for {num_clients} clients: start as many as there are clients, "
            f'in a simulation with --federation-config "num-supernodes={num_clients}"'
        )
    return node_ids
