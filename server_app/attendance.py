"""Attendance: before each round it finds the nodes that have left or come."""

from collections.abc import Callable, Collection, Mapping
from logging import INFO, WARNING

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from gdpfed.errors import RunError
from gdpfed.privacy.ledgers.terms import Terms
from server_app.budgets import begin_terms, offer_terms
from server_app.join import Joined, ask_which_clients


class Attendance:
    """Knows which clients can be reached.

    A node that is no longer online has left. One that comes, for the first time or again, is asked which
    client it is, once, and takes part from the next round on if no other is and if it agrees to the terms of
    its group; in active mode only under the key that the others know.

    Args:
        joined: the nodes so far; kept up to date.
        terms_of: the terms, from a round on, of those clients that have a budget of their own.
        mode: of secure aggregation.
        timeout_seconds: how long new nodes have to answer.
    """

    def __init__(
        self,
        grid: Grid,
        joined: Joined,
        terms_of: Callable[[Joined, int], Mapping[int, Terms]],
        num_clients: int,
        mode: str,
        timeout_seconds: float,
    ) -> None:
        self._grid = grid
        self._joined = joined
        self._terms_of = terms_of
        self._num_clients = num_clients
        self._mode = mode
        self._timeout_seconds = timeout_seconds
        self._asked: set[int] = set()

    def present(self, round_index: int) -> frozenset[int]:
        """The clients that can be reached in the round that begins, those that have just come among them."""
        online = set(self._grid.get_node_ids())
        nodes = self._joined.nodes
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
        for reply in ask_which_clients(self._grid, node_ids, self._mode, self._timeout_seconds):
            try:
                late = self._checked(reply)
                terms = self._terms_of(late, round_index)
                offer_terms(self._grid, late, terms, self._timeout_seconds)
                begin_terms(self._grid, late, terms, self._timeout_seconds)
            except RunError as error:
                log(WARNING, "%s; the run goes on without it", error)
                continue
            self._joined.nodes.update(late.nodes)
            log(INFO, "client %d takes part from the next round on", *late.nodes)

    def _checked(self, reply: Message) -> Joined:
        """Return one node's answer if the node may take part as that client."""
        late = Joined()
        late.add(reply)
        client_id = next(iter(late.nodes), -1)
        if not 0 <= client_id < self._num_clients:
            raise RunError(
                f"SuperNode {reply.metadata.src_node_id} says it is client {client_id}: partition-id must "
                f"be from 0 to {self._num_clients - 1}"
            )
        if client_id in self._joined.nodes:
            raise RunError(f"two SuperNodes say they are client {client_id}: set partition-id apart")
        if late.roster != {key: self._joined.roster.get(key) for key in late.roster}:
            raise RunError(f"client {client_id} signs with another key than the others know it by")
        return late
