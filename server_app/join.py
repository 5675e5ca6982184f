"""Which node is which client: asked once, before anything is charged."""

import time
from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from gdpfed.exchange import CLIENT_RECORD, JOIN
from gdpfed.rounds.errors import RunError

SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.2


def join_clients(
    grid: Grid, num_clients: int, mode: str, timeout_seconds: float
) -> tuple[dict[int, int], dict[int, bytes]]:
    """Wait for the nodes and ask each which client it is and, in active mode, by which key it signs.

    Returns:
        The node id of every client id in ``range(num_clients)``, and the roster: the public identity
        key of every client, empty but in active mode.

    Raises:
        RunError: too few or too many nodes, a node that does not answer, or two that answer the same.
    """
    node_ids = _settled_nodes(grid, num_clients, timeout_seconds)
    log(INFO, "asking %d SuperNodes which clients they are", len(node_ids))
    question = RecordDict({CLIENT_RECORD: ConfigRecord({"mode": mode})})
    messages = [Message(question, node_id, f"query.{JOIN}") for node_id in node_ids]
    nodes: dict[int, int] = {}
    roster: dict[int, bytes] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout_seconds):
        record = None if reply.has_error() else reply.content.get(CLIENT_RECORD)
        client_id = record["client_id"] if isinstance(record, ConfigRecord) else None
        if not isinstance(record, ConfigRecord) or not isinstance(client_id, int):
            continue
        if client_id in nodes:
            raise RunError(f"two SuperNodes say they are client {client_id}: set partition-id apart")
        nodes[client_id] = reply.metadata.src_node_id
        identity = record.get("identity")
        if isinstance(identity, bytes):
            roster[client_id] = identity
    missing = [client_id for client_id in range(num_clients) if client_id not in nodes]
    if missing:
        raise RunError(
            f"no SuperNode says it is client {missing[0]} ({len(missing)} of {num_clients} clients are "
            "missing): partition-id must run from 0 to dataset.num_clients - 1"
        )
    return nodes, roster


def _settled_nodes(grid: Grid, num_clients: int, timeout_seconds: float) -> list[int]:
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
    if len(node_ids) != num_clients:
        raise RunError(
            f"{len(node_ids)} SuperNodes for {num_clients} clients: start as many as there are clients, "
            f'in a simulation with --federation-config "num-supernodes={num_clients}"'
        )
    return node_ids
