"""Before each round, the server checks which nodes have left and which have come."""

import time
from collections.abc import Callable, Collection, Mapping
from logging import INFO, WARNING

from gdpfed.clients.messages import CLIENT_RECORD, END, RUN
from gdpfed.errors import RunError
from gdpfed.federation import log
from gdpfed.federation.server.budgets import Offer, begin_terms, offer_terms
from gdpfed.federation.server.client_history import ClientHistory
from gdpfed.federation.server.join import Joined, NodeAnswer, ask_which_clients
from gdpfed.federation.server.questions import NodeRefusedError, Questions, Transport, refusals

POLL_SECONDS = 1.0
MOST_FAREWELL_SECONDS = 30.0


class Attendance:
    """Keeps track of which clients can be reached, and admits nodes that come late.

    A node that is no longer online has left. A node that comes, for the first time or again, is asked for its
    client id. It takes part in the next rounds if no other node has that id and the node accepts its group's
    terms. If nodes prove keys, its key must be the known key of that client.

    Args:
        joined: the nodes that have joined; this object keeps it up to date.
        terms_of: returns the terms, from a round on, for the clients with a budget of their own.
        refusals_of: returns the clients that cannot take part with the number of their records, and why.
        questions: the questions that a node answers before it takes part.
        history: the record of clients that have charged the run.
        patience: the number of nodes that must be online before a round, and the most seconds to wait for
            them and for a sum to be possible. The number is above 0 only for edges: their devices pay for a
            round even if too few edges answer.
    """

    def __init__(
        self,
        transport: Transport,
        joined: Joined,
        terms_of: Callable[[Joined, int], Mapping[int, Offer]],
        refusals_of: Callable[[Joined], Mapping[int, str]],
        num_clients: int,
        questions: Questions,
        history: ClientHistory,
        patience: tuple[int, float] = (0, 0.0),
    ) -> None:
        self._patience = patience
        self._transport = transport
        self.history = history
        self._joined = joined
        self._terms_of = terms_of
        self._refusals_of = refusals_of
        self._num_clients = num_clients
        self._questions = questions
        self._asked = set(joined.refused)

    def present(self, round_index: int, suffices: Callable[[Collection[int]], bool]) -> frozenset[int]:
        """Return the clients that can be reached for a round; wait a limited time until there are enough.

        `suffices`: whether a sum can be made with these clients.
        """
        enough, seconds = self._patience
        deadline, told = time.monotonic() + seconds, False
        while True:
            there = self._look_round(round_index)
            if (len(there) >= enough and suffices(there)) or time.monotonic() >= deadline:
                return there
            if not told:
                log(
                    WARNING,
                    "%d nodes are there, too few for a round: waiting up to %g s",
                    len(there),
                    seconds,
                )
                told = True
            time.sleep(POLL_SECONDS)

    def _look_round(self, round_index: int) -> frozenset[int]:
        """Remove nodes that left, admit nodes that came, and return the clients that can be reached."""
        nodes = self._joined.nodes
        online = self._transport.node_ids()
        left = [client_id for client_id, node_id in nodes.items() if node_id not in online]
        for client_id in left:
            del nodes[client_id]
            log(WARNING, "client %d has left", client_id)
        strangers = online - set(nodes.values()) - self._asked
        self._asked = (self._asked | strangers) & online
        if strangers:
            self._admit(strangers, round_index)
        return frozenset(nodes)

    def _admit(self, node_ids: Collection[int], round_index: int) -> None:
        replies = ask_which_clients(self._transport, node_ids, self._questions)
        for node_id, reply in replies.items():
            try:
                late = self._checked(NodeAnswer.of(node_id, reply, self._num_clients, self._questions))
                self._agree(late, round_index)
            except RunError as error:
                log(WARNING, "%s; the run goes on without it", error)
                continue
            self._joined.nodes.update(late.nodes)
            log(INFO, "client %d takes part from the next round on", *late.nodes)

    def _agree(self, late: Joined, round_index: int) -> None:
        """Have a late node accept the terms of the remaining rounds and record the cost in the node's ledger.

        Raises NodeRefusedError: the node refuses, or its number of records does not fit the plan.
        """
        _refuse(self._refusals_of(late))
        terms = self._terms_of(late, round_index)
        _refuse(offer_terms(self._transport, late, terms))
        _refuse(begin_terms(self._transport, late, terms, self.history))

    def _checked(self, answer: NodeAnswer) -> Joined:
        """Return a late node as joined; raise NodeRefusedError if its client is taken or its key is unknown.

        Raises NodeRefusedError: another node is this client, or the node proves another key than before.
        """
        if answer.client_id in self._joined.nodes:
            raise NodeRefusedError(
                f"two SuperNodes say they are client {answer.client_id}: give each a partition-id of its own"
            )
        late = Joined()
        late.add(answer)
        known = self._questions.roster or self._joined.roster
        if late.roster != {key: known.get(key) for key in late.roster}:
            raise NodeRefusedError(
                f"client {answer.client_id} signs with a key that the other clients do not know: start "
                "it with its former identity-file"
            )
        return late


def _refuse(refusals: Mapping[int, str]) -> None:
    for client, refusal in refusals.items():
        raise NodeRefusedError(f"client {client} does not take part in this run: {refusal}")


def tell_edges_the_end(transport: Transport, joined: Joined, run_name: str) -> None:
    """Tell edge servers that the central server's run is over, so that none waits for another request."""
    content = {CLIENT_RECORD: {RUN: run_name}}
    contents = dict.fromkeys(joined.nodes, content)
    seconds = min(transport.timeout_seconds, MOST_FAREWELL_SECONDS)
    for client, why in refusals(transport, joined.nodes, contents, END, seconds).items():
        log(WARNING, "edge %d does not know that the run is over: %s", client, why)
