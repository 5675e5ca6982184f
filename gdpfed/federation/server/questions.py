"""The server's requests to nodes, and the check that joining nodes own the keys that they claim."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from conf.schema import Config
from gdpfed.clients.messages import (
    BY_PARTY,
    CHALLENGE,
    CLIENT_RECORD,
    CLIENTS,
    COLUMNS,
    IDENTITY,
    INPUT_DTYPE,
    INPUT_SHAPE,
    LABEL_DTYPE,
    LABEL_SHAPE,
    LOSS,
    MODE,
    MODEL,
    ROSTER_DIGEST,
    SIGNATURE,
    SOURCE,
    UNIT,
    WEIGHTS,
)
from gdpfed.clients.versions import said_here
from gdpfed.errors import ConfigError, RunError
from gdpfed.identities import public_key_of, read_roster
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.task import Task
from gdpfed.privacy.events import Unit
from secagg import Roster
from secagg.crypto.signatures import CHALLENGE_BYTES, NO_ROSTER, is_signed, join_statement

PATIENCE_SECONDS, PART_OF_THE_TIMEOUT = 60.0, 0.1
"""Who waits for longer wants to know for whom."""


def patience(timeout_seconds: float) -> float:
    """Return after how many seconds the log names silent nodes: a tenth of the timeout, at most a minute."""
    return min(PATIENCE_SECONDS, PART_OF_THE_TIMEOUT * timeout_seconds)


Records = Mapping[str, Mapping[str, Any]]
"""What a message holds: records of plain values, or of arrays, by name."""


@dataclass(frozen=True)
class NodeReply:
    """One node's answer to a request of the server: values, or an error.

    `records`: in the answer. `failure`: why it is none, in one printable line; None where it is one.
    `reached`: whether the node itself has answered; what has not reached it is a failure of the transport.
    """

    records: Records = field(default_factory=dict)
    failure: str | None = None
    reached: bool = True


class Transport(Protocol):
    """Carries the server's requests to nodes, and the nodes' answers back.

    Attributes:
        timeout_seconds: how long a question waits for its answers.
    """

    timeout_seconds: float

    def node_ids(self) -> set[int]:
        """Return the ids of the nodes that are online."""
        ...

    def ask(
        self,
        question: str,
        contents: Mapping[int, Records],
        *,
        timeout_seconds: float | None = None,
        tell_silent: Callable[[Collection[int]], None] | None = None,
    ) -> dict[int, NodeReply]:
        """Send nodes a request; return the answers by node id, without nodes that stayed silent.

        `question`: of those in `gdpfed.clients.messages`. `contents`: for each node. `timeout_seconds`:
        another one than the transport's. `tell_silent`: is told once, after some `patience`, which nodes
        have not answered yet.
        """
        ...


def refusals(
    transport: Transport,
    nodes: Mapping[int, int],
    contents: Mapping[int, Records],
    question: str,
    timeout_seconds: float | None = None,
) -> dict[int, str]:
    """Send clients a request; return the reason of each client that refuses or stays silent."""
    by_node = {nodes[client]: content for client, content in contents.items()}
    replies = transport.ask(question, by_node, timeout_seconds=timeout_seconds) if by_node else {}
    seconds = transport.timeout_seconds if timeout_seconds is None else timeout_seconds
    silence = NodeReply(failure=f"it did not answer within {seconds:g} seconds")
    answers = {client: replies.get(nodes[client], silence).failure for client in contents}
    return {client: failure for client, failure in answers.items() if failure is not None}


class NodeRefusedError(RunError):
    """Raised if a node is left out of the run for the stated reason; the run continues without it."""


@dataclass(frozen=True)
class Bounds:
    """Limits on the budgets and record counts that nodes may state, since these affect every client's noise.

    `least_epsilon`, `least_delta`: of its budget. `most_records`: that it brings.
    """

    least_epsilon: float
    most_records: int
    least_delta: float


# Beyond these no plan can be made.
WIDEST = Bounds(1e-3, 2**40, 1e-12)


class Questions:
    """Makes a request to join for each node, with a fresh challenge, and checks the node's signed answer.

    Nodes prove their keys where there is a roster, and in active mode.

    Args:
        mode: of secure aggregation.
        run: Flower's id of the run, which the nodes know, too.
        roster: the consortium's; None where the nodes' own words are believed.
        task: of the run, by which nodes see whether they fit; None leaves them to find out when they train.
        unit: whose presence the run protects; where it is a record, nodes say how many they bring.
        told: what systems tell nodes beside, by side, such as a price that their budgets answer.
        bounds: on what a node may say of itself; one that says more is left out.
        by_party: whether counts of single clients are shown at the end.
    """

    def __init__(
        self,
        mode: str,
        run: str,
        roster: Roster | None,
        task: Task | None = None,
        unit: Unit = "client",
        told: Records = MappingProxyType({}),
        *,
        bounds: Bounds = WIDEST,
        by_party: bool = False,
    ) -> None:
        self.roster = roster
        self._told = told
        self._by_party = by_party
        self.bounds = bounds
        self.unit = unit
        self._task = task
        self._mode = mode
        self._run = run
        self._signed = roster is not None or mode == "active"
        self._digest = NO_ROSTER if roster is None else roster.digest
        self._challenges: dict[int, bytes] = {}

    def to(self, node_id: int) -> Records:
        """Return the request to join for one node, with a fresh random challenge."""
        question: dict[str, Any] = {MODE: self._mode, UNIT: self.unit, **said_here()}
        if self._by_party:
            question[BY_PARTY] = True
        if self._task is not None:
            question[CLIENTS] = self._task.num_clients
            form = ExampleForm.of(self._task.load())
            question[INPUT_SHAPE], question[INPUT_DTYPE] = list(form.own_shape), form.own_dtype
            question[LABEL_DTYPE], question[LABEL_SHAPE] = form.labels.dtype, list(form.label_shape)
            question[COLUMNS] = form.declared or ""
            question[SOURCE] = self._task.source.to_json()
            question[MODEL], question[LOSS] = self._task.model, self._task.loss
            if self._task.source.weights_sha256 is not None:
                question[WEIGHTS] = self._task.source.weights_sha256
        if self._signed:
            self._challenges[node_id] = os.urandom(CHALLENGE_BYTES)
            question[CHALLENGE], question[ROSTER_DIGEST] = self._challenges[node_id], self._digest
        return {CLIENT_RECORD: question, **self._told}

    def proven_key(self, node_id: int, client_id: int, answer: Mapping[str, Any]) -> bytes | None:
        """Return the public key that a node's signature proves, or None if this run asks for no proof.

        Raises NodeRefusedError: it proves none, or another one than the roster has for the client.
        """
        if not self._signed:
            return None
        challenge = self._challenges.pop(node_id, None)
        key, signature = answer.get(IDENTITY), answer.get(SIGNATURE)
        if challenge is None or not isinstance(key, bytes) or not isinstance(signature, bytes):
            raise NodeRefusedError(
                f"SuperNode {node_id} says it is client {client_id}, and signs nothing: start it with "
                "identity-file, the key of this client"
            )
        if not is_signed(key, signature, join_statement(self._run, challenge, client_id, self._digest)):
            raise NodeRefusedError(
                f"SuperNode {node_id} says it is client {client_id}, and its signature does not fit its "
                "key: start it with identity-file, the key of this client"
            )
        if self.roster is not None and self.roster.get(client_id) != key:
            raise NodeRefusedError(
                f"SuperNode {node_id} says it is client {client_id}, and signs with another key than the "
                "consortium's roster has for it: set its partition-id or its identity-file right"
            )
        return key


def consortium_roster(config: Config) -> Roster | None:
    """Read the consortium's signed list of clients' public keys, or return None for a run without one.

    Raises:
        ConfigError: a client of the run is not in it.
        IdentityError: it cannot be read, or this consortium has not signed it.
    """
    file, num_clients = config.secagg.roster_file, config.dataset.num_clients
    if file is None:
        return None
    consortium = public_key_of(str(config.secagg.consortium_key))
    roster = read_roster(Path(file).expanduser(), consortium)
    missing = [client for client in range(num_clients) if client not in roster]
    if missing:
        raise ConfigError(
            f"secagg.roster_file={file} lacks client {missing[0]} ({len(missing)} of {num_clients} clients): "
            "ask the consortium for a roster of all, or set dataset.num_clients right"
        )
    return roster


def keys_of_clients(roster: Roster | None, num_clients: int) -> dict[int, str] | None:
    """Return the public keys of a run's clients in hexadecimal, for the run's files."""
    return None if roster is None else {client: roster[client].hex() for client in range(num_clients)}
