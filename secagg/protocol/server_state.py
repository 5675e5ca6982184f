"""The server's state of one sum. Members go by their numbers in the sum."""

from collections import Counter
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from hmac import compare_digest

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.packing import add_packed
from secagg.crypto.keys import NO_CONTEXT, session_id, share_commitment
from secagg.crypto.roster import Roster
from secagg.protocol.graph import Graph, graph_of
from secagg.protocol.parameters import SumParameters
from secagg.protocol.public_keys import PublicKeys
from secagg.protocol.sum_messages import KEY_BYTES, MaskReply, ShareReply, UnmaskReply


@dataclass(repr=False, eq=False)
class ServerState:
    """The memory of a `ServerSession`. Sets that are empty are not yet known, or forgotten.

    Attributes:
        parameters: the sum's public numbers.
        roster: whose key is whose; empty unless clients sign.
        correctors: the members of whom no update is asked.
        members: number -> `PublicKeys.to_bytes` of all who advertised (U1).
        signatures: number -> the signature of those keys.
        taken_keys: all public keys so far, none of which may come twice.
        sid, graph: fixed when the members are.
        dealt: dealer -> the shares it dealt, and its commitments to them.
        contributors: U2, ascending.
        masked: number -> its masked vector, until it is known who is in the sum.
        survivors: U3, ascending.
        complaints: survivor -> the members whose shares it could not open.
        orphans: members of U2 less U3 of whom fewer than t survivors hold shares.
        survivor_signatures: number -> signature of U3.
        unmask_replies: number -> the shares it revealed.
        blamed: members whose fault is certain.
        context: names what the members make their vectors from.
        total: uint32[d], the sum of the survivors' masked vectors.
    """

    parameters: SumParameters
    roster: Roster
    correctors: frozenset[int] = frozenset()
    members: dict[int, bytes] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)
    taken_keys: set[bytes] = field(default_factory=set)
    sid: bytes = b""
    graph: Graph = field(default_factory=lambda: Graph((), 0))
    dealt: dict[int, ShareReply] = field(default_factory=dict)
    contributors: tuple[int, ...] = ()
    masked: dict[int, MaskReply] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    complaints: dict[int, frozenset[int]] = field(default_factory=dict)
    orphans: tuple[int, ...] = ()
    survivor_signatures: dict[int, bytes] = field(default_factory=dict)
    unmask_replies: dict[int, UnmaskReply] = field(default_factory=dict)
    blamed: set[int] = field(default_factory=set)
    context: bytes = NO_CONTEXT
    total: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @property
    def lost(self) -> tuple[int, ...]:
        """U2 less U3, ascending."""
        return tuple(sorted(set(self.contributors) - set(self.survivors)))

    def keys_of(self, member: int) -> PublicKeys:
        return PublicKeys.from_bytes(self.members[member])

    def is_committed(self, dealer: int, part: int, holder: int, share: bytes) -> bool:
        """Whether a share is the one that the dealer committed to; see `share_commitment` for the part."""
        committed = self.dealt[dealer].commitments[holder][KEY_BYTES * part : KEY_BYTES * (part + 1)]
        return compare_digest(share_commitment(self.sid, (dealer, holder), part, share), committed)

    def fix_members(self) -> None:
        """Derive the session id and the graph; the members do not change afterwards."""
        self.sid = session_id(self.parameters.to_bytes(), self.members)
        self.graph = graph_of(self.sid, frozenset(self.members), self.parameters.num_neighbours)

    def num_updates(self, members: Collection[int]) -> int:
        """How many of these members bring an update."""
        return len(set(members) - self.correctors)

    def num_neighbours(self, member: int, present: Set[int]) -> int:
        """How many neighbours a member has among those present."""
        if self.graph.is_complete:
            return len(present) - (member in present)
        return len(self.graph.neighbours(member) & present)

    def fix_survivors(self, fewest: int) -> None:
        """Choose U3 among those whose vectors came, and add these up.

        Who complains about more than half of its neighbours is left out, and its complaints with it. So is
        a member whose secrets fewer than t could give back: it would keep the sum from being unmasked. Of
        those lost, these are the orphans. Nothing is added up if fewer than `fewest` are left.
        """
        there = frozenset(self.contributors)
        self.complaints = {member: frozenset(reply.complaints) for member, reply in self.masked.items()}
        for member, about in list(self.complaints.items()):
            if 2 * len(about) > self.num_neighbours(member, there):
                self.blamed.add(member)
                del self.complaints[member]
        accused = self._accused()
        self.blamed |= {
            member for member, count in accused.items() if 2 * count > self.num_neighbours(member, there)
        }
        while len(self.complaints) >= fewest and (helpless := self._helpless() & self.complaints.keys()):
            for member in helpless:
                del self.complaints[member]
        self.survivors = tuple(sorted(self.complaints))
        if len(self.survivors) >= fewest:
            self.orphans = tuple(sorted(self._helpless()))
            packed = [self.masked[survivor].packed for survivor in self.survivors]
            add_packed(self.total, packed, self.parameters.modulus_bits)
        self.masked = {}

    def _accused(self) -> Counter[int]:
        """How many of the present complain about each member."""
        return Counter(member for about in self.complaints.values() for member in about)

    def _helpless(self) -> set[int]:
        """The contributors of whose secrets fewer than t of the present hold shares."""
        present, accused = self.complaints.keys(), self._accused()
        return {
            member
            for member in self.contributors
            if self.num_neighbours(member, present) - accused[member] < self.parameters.threshold
        }

    def forget(self) -> None:
        """Drop what the sum no longer needs, shares of secrets above all."""
        self.members, self.signatures, self.taken_keys = {}, {}, set()
        self.dealt, self.masked, self.unmask_replies = {}, {}, {}
        self.survivor_signatures = {}
        self.total = np.zeros(0, dtype=np.uint32)
