"""How nodes join a run: each states its client number and its budget, before any cost is recorded.

What a node says is taken in under one guard: an answer that cannot be used loses that node and nobody else.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING

from gdpfed.clients.messages import CLIENT_RECORD, JOIN, RECORDS, VERSIONS, one_line
from gdpfed.clients.versions import differences, foreign_wire
from gdpfed.errors import RunError
from gdpfed.federation import log
from gdpfed.federation.server.questions import (
    NodeRefusedError,
    NodeReply,
    Questions,
    Transport,
    patience,
)

WITHOUT_AN_ANSWER = "No query function registered"
"""What Flower says for an app that has no function for a question."""
SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.2
# Beyond it no plan can be made, and one such budget would keep everybody's run from beginning.
MOST_EPSILON = 1e6


@dataclass(frozen=True)
class OwnBudget:
    """A client's own epsilon and delta, as the client states them."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class NodeAnswer:
    """What one node states when it joins: its client number, its budget and its key.

    Attributes:
        node_id: of the node.
        client_id: which client it is.
        identity: the key that it has proven, where it was asked for one.
        budget: of its own, if it has one, in the run's unit.
        records: how many it brings itself to a run that protects records; None where it brings none.
        versions: of its packages, in words; empty where it says none.
    """

    node_id: int
    client_id: int
    identity: bytes | None
    budget: OwnBudget | None
    records: int | None = None
    versions: str = ""

    @classmethod
    def of(cls, node_id: int, reply: NodeReply, num_clients: int, questions: Questions) -> "NodeAnswer":
        """Read a node's answer to the server's request to join.

        Raises NodeRefusedError: it refuses, or says what no node can be.
        """
        if reply.failure is not None:
            raise NodeRefusedError(f"SuperNode {node_id} does not join: {reply.failure}")
        record = reply.records.get(CLIENT_RECORD)
        if record is None:
            raise NodeRefusedError(
                f"SuperNode {node_id} does not say which client it is: see that it "
                "runs this version of the app"
            )
        if unlike := foreign_wire(record):
            raise NodeRefusedError(f"SuperNode {node_id} does not join: {unlike}")
        client_id = record.get("client_id")
        if type(client_id) is not int or not 0 <= client_id < num_clients:
            raise NodeRefusedError(
                f"SuperNode {node_id} says it is client {one_line(client_id)}: partition-id must be from "
                f"0 to {num_clients - 1}"
            )
        identity = questions.proven_key(node_id, client_id, record)
        bounds = questions.bounds
        records = record.get(RECORDS) if questions.unit == "record" else None
        if records is not None and (type(records) is not int or not 1 <= records <= bounds.most_records):
            raise NodeRefusedError(
                f"client {client_id} says that it has {one_line(records)} records, and is left out: it must "
                f"be from 1 to privacy.most_records={bounds.most_records}"
            )
        epsilon, delta, least = record.get("epsilon"), record.get("delta"), bounds.least_epsilon
        budget = None
        if epsilon is not None or delta is not None:
            if type(epsilon) is not float or not least <= epsilon <= MOST_EPSILON:
                raise NodeRefusedError(
                    f"client {client_id} states a budget of epsilon {one_line(epsilon)}, and is left out: it "
                    f"must be from privacy.budget_floor={least:g} to {MOST_EPSILON:g}"
                )
            if type(delta) is not float or not bounds.least_delta <= delta < 1:
                raise NodeRefusedError(
                    f"client {client_id} states a budget of delta {one_line(delta)}, and is left out: it "
                    f"must be from privacy.delta_floor={bounds.least_delta:g} to below 1"
                )
            budget = OwnBudget(epsilon, delta)
        versions = one_line(record[VERSIONS]) if VERSIONS in record else ""
        return cls(node_id, client_id, identity, budget, records, versions)


@dataclass
class Joined:
    """The nodes that have joined a run, and what each has stated.

    Attributes:
        nodes: the node id of every client.
        roster: the key that every client has proven, empty where none is asked for.
        budgets: the budgets of clients that have one of their own.
        records: how many records each client brings that brings its own, where these are protected.
        refused: why each node that was asked takes no part, by its id.
        versions: of the packages of every client that says them.
    """

    nodes: dict[int, int] = field(default_factory=dict)
    roster: dict[int, bytes] = field(default_factory=dict)
    budgets: dict[int, OwnBudget] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    versions: dict[int, str] = field(default_factory=dict)

    def add(self, answer: NodeAnswer) -> None:
        """Add a node that joins; raise NodeRefusedError if another node is the same client."""
        client_id = answer.client_id
        if client_id in self.nodes:
            raise NodeRefusedError(
                f"two SuperNodes say they are client {client_id}: give each a partition-id of its own; "
                f"SuperNode {self.nodes[client_id]} was there first, {answer.node_id} takes no part"
            )
        if answer.identity is not None and answer.identity in self.roster.values():
            raise NodeRefusedError(
                f"SuperNode {answer.node_id} says it is client {client_id}, and signs with the key of "
                "another client: each node needs an identity of its own"
            )
        self.nodes[client_id] = answer.node_id
        if answer.identity is not None:
            self.roster[client_id] = answer.identity
        if answer.budget is not None:
            self.budgets[client_id] = answer.budget
        if answer.records is not None:
            self.records[client_id] = answer.records
        if answer.versions:
            self.versions[client_id] = answer.versions

    def leave_out(self, refusals: Mapping[int, str], enough: int) -> None:
        """Remove these clients from the run; raise RunError if fewer than ``enough`` nodes are left.

        Raises RunError: too few stay; it says why the last one does not.
        """
        left = len(self.nodes.keys() - refusals.keys())
        without = "it" if len(refusals) == 1 else "them"
        remedy = f": run.minimum_nodes={left} goes on without {without}" if left else ""
        for client_id, reason in refusals.items():
            self.refused[self.nodes.pop(client_id)] = reason
            self.roster.pop(client_id, None)
            self.budgets.pop(client_id, None)
            self.records.pop(client_id, None)
            if len(self.nodes) < enough:
                raise RunError(f"{reason}; {left} nodes are left and {enough} are needed{remedy}")
            log(WARNING, "%s", reason)

    def take(self, replies: Mapping[int, NodeReply], num_clients: int, questions: Questions) -> None:
        """Add nodes by their answers to the request to join; log each node that cannot take part."""
        for node_id, reply in replies.items():
            try:
                self.add(NodeAnswer.of(node_id, reply, num_clients, questions))
            except NodeRefusedError as error:
                self.refused[node_id] = str(error)
                log(WARNING, "%s", error)


def join_clients(
    transport: Transport,
    num_clients: int,
    questions: Questions,
    minimum_nodes: int | None = None,
) -> Joined:
    """Wait for nodes, and ask each for its client number, its budget and, if nodes sign, its key.

    Returns what they say, with a node for every client id in ``range(num_clients)``, or for ``minimum_nodes``
    of them if fewer are enough. A node that answers with what cannot be used is left out. Raises RunError:
    too few nodes.
    """
    enough = min(num_clients, minimum_nodes or num_clients)
    joined, deadline = Joined(), time.monotonic() + transport.timeout_seconds
    asked, errors = set[int](), list[str]()
    while fresh := _settled_nodes(transport, asked, num_clients - len(joined.nodes), deadline):
        asked |= fresh
        replies = _asked_which_clients(transport, fresh, questions)
        joined.take(_reached(replies), num_clients, questions)
        errors += [reply.failure or "" for reply in replies.values() if not reply.reached]
        if len(joined.nodes) >= enough:
            break
    if len(asked) < enough:
        raise RunError(
            f"{len(asked)} SuperNodes for {num_clients} clients: start as many as there are clients, "
            f'in a simulation with --federation-config "num-supernodes={num_clients}"'
        )
    missing = [client_id for client_id in range(num_clients) if client_id not in joined.nodes]
    if num_clients - len(missing) < enough:
        raise RunError(
            f"no SuperNode says it is client {missing[0]} ({len(missing)} of {num_clients} clients are "
            "missing): each must be up, with a partition-id from 0 to dataset.num_clients - 1"
            + "".join(f"; {reason}" for reason in [*joined.refused.values(), *map(_why_failed, errors)][:1])
        )
    if unlike := differences(joined.versions):
        log(WARNING, "%s", unlike)
    return joined


def ask_which_clients(
    transport: Transport, node_ids: Collection[int], questions: Questions
) -> dict[int, NodeReply]:
    """Ask nodes which clients they are; nodes that cannot be reached are missing from the result."""
    return _reached(_asked_which_clients(transport, node_ids, questions))


def _reached(replies: Mapping[int, NodeReply]) -> dict[int, NodeReply]:
    return {node_id: reply for node_id, reply in replies.items() if reply.reached}


def _why_failed(error: str) -> str:
    """Say why a node's app failed: it is not wrapped by private_client, or it raised the given error."""
    if WITHOUT_AN_ANSWER in error:
        return f"its app is not wrapped, write app = private_client(app) ({error})"
    return f"the app of a node fails: {error}"


def _asked_which_clients(
    transport: Transport, node_ids: Collection[int], questions: Questions
) -> dict[int, NodeReply]:
    """Ask nodes which clients they are; return the answers, and errors of nodes that could not answer."""
    log(INFO, "asking %d SuperNodes which clients they are", len(node_ids))

    def tell_silent(silent: Collection[int]) -> None:
        log(
            WARNING,
            "SuperNodes %s have not answered for %g s: see whether their SuperExecs run; this run waits for "
            "them up to %g s",
            ", ".join(map(str, sorted(silent))),
            patience(transport.timeout_seconds),
            transport.timeout_seconds,
        )

    contents = {node_id: questions.to(node_id) for node_id in node_ids}
    return transport.ask(JOIN, contents, tell_silent=tell_silent)


def _settled_nodes(transport: Transport, asked: Collection[int], wanted: int, deadline: float) -> set[int]:
    """Return online nodes that were not asked yet; wait until there are enough or no more come."""
    changed = time.monotonic()
    fresh = transport.node_ids() - set(asked)
    while len(fresh) < wanted and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        now = transport.node_ids() - set(asked)
        if len(now) != len(fresh):
            changed = time.monotonic()
        fresh = now
        if (fresh or asked) and time.monotonic() - changed > SETTLE_SECONDS:
            break
    return fresh
