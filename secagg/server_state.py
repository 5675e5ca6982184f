"""The server's state of one sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.graph import Graph, graph_of
from secagg.keys import NO_CONTEXT, session_id
from secagg.messages import UnmaskReply
from secagg.parameters import SumParameters


@dataclass(repr=False, eq=False)
class ServerState:
    """The memory of a `ServerSession`. Sets that are empty are not yet known, or forgotten.

    Attributes:
        parameters: the sum's public numbers.
        roster: client id -> registered public key; empty unless clients sign.
        members: id -> `PublicKeys.to_bytes` of all who advertised (U1).
        signatures: id -> the signature of those keys.
        taken_keys: all public keys so far, none of which may come twice.
        sid, graph: fixed when the members are.
        sealed: source -> destination -> sealed shares.
        noise_commitments: id -> commitment to its noise seeds.
        contributors, survivors: U2 and U3, ascending.
        survivor_signatures: id -> signature of U3.
        unmask_replies: id -> the shares it revealed.
        context: names what the members make their vectors from.
        total: uint32[d], the sum of the masked vectors so far.
    """

    parameters: SumParameters
    roster: Mapping[int, bytes]
    members: dict[int, bytes] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    taken_keys: set[bytes] = field(default_factory=set)
    sid: bytes = b""
    graph: Graph = field(default_factory=lambda: Graph((), 0))
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)
    noise_commitments: dict[int, bytes] = field(default_factory=dict)
    contributors: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()
    survivor_signatures: dict[int, bytes] = field(default_factory=dict)
    unmask_replies: dict[int, UnmaskReply] = field(default_factory=dict)
    context: bytes = NO_CONTEXT
    total: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @property
    def lost(self) -> tuple[int, ...]:
        """U2 less U3, ascending."""
        return tuple(sorted(set(self.contributors) - set(self.survivors)))

    def fix_members(self) -> None:
        """Derive the session id and the graph; the members do not change afterwards."""
        self.sid = session_id(self.parameters.to_bytes(), self.members)
        self.graph = graph_of(self.sid, frozenset(self.members), self.parameters.num_neighbours)

    def fewest_neighbours(self, present: tuple[int, ...], needing: tuple[int, ...]) -> int:
        """The least number of neighbours that one of `needing` has among `present`."""
        there = frozenset(present)
        if self.graph.is_complete:
            return len(there) - 1
        return min(len(self.graph.neighbours(client_id) & there) for client_id in needing)

    def forget(self) -> None:
        """Drop what the sum no longer needs, shares of secrets above all."""
        self.members, self.signatures, self.taken_keys = {}, {}, set()
        self.sealed, self.noise_commitments, self.unmask_replies = {}, {}, {}
        self.survivor_signatures = {}
        self.total = np.zeros(0, dtype=np.uint32)
