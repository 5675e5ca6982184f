"""The server's state during one secure sum, and its checks of clients' replies.

Members are named by their numbers in the sum.
"""

from collections import Counter
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.packing import add_packed
from secagg.crypto.keys import NO_CONTEXT, PublicKeys, is_sound_public_key, session_id, share_commitment
from secagg.crypto.roster import Roster
from secagg.crypto.signatures import is_signed, keys_statement, survivors_statement
from secagg.protocol.graph import Graph, graph_of
from secagg.protocol.parameters import SumParameters
from secagg.protocol.sum_messages import (
    KEY_BYTES,
    AdvertiseReply,
    CheckReply,
    MaskReply,
    ShareReply,
    UnmaskReply,
    hash_parameters,
)
from secagg.protocol.transitions import Stage
from secagg.sum_errors import Cause, RemoteProtocolError


@dataclass(repr=False, eq=False)
class ServerState:
    """What the server's session of one secure sum knows so far; an empty value is unknown yet, or erased.

    Attributes:
        parameters: the sum's public parameters.
        roster: the clients' public keys; empty unless clients sign.
        correctors: the members that are not asked for an update.
        members: number -> `PublicKeys.to_bytes`, of all members that advertised keys (U1).
        signatures: number -> the signature of those keys.
        taken_keys: all public keys so far; a key that comes twice is refused.
        sid, graph: the session id and the graph, known when the members are.
        dealt: dealer -> the encrypted shares that it dealt, and its commitments to them.
        contributors: the members that shared their secrets (U2), ascending.
        masked: number -> the masked vector, until the survivors are known.
        survivors: the members in the sum (U3), ascending.
        complaints: survivor -> the members whose shares it found invalid.
        orphans: members of U2 but not U3 for which fewer than t survivors hold valid shares.
        survivor_signatures: number -> signature of U3.
        unmask_replies: number -> the shares that the member revealed.
        blamed: members that are certainly at fault.
        disputed: member left out because of complaints -> who complained; either may be at fault.
        context: 32 bytes that name what the members make their vectors from.
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
    disputed: dict[int, frozenset[int]] = field(default_factory=dict)
    context: bytes = NO_CONTEXT
    total: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @property
    def lost(self) -> tuple[int, ...]:
        """The members that shared secrets (contributors) and are not in the sum, ascending."""
        return tuple(sorted(set(self.contributors) - set(self.survivors)))

    def keys_of(self, member: int) -> PublicKeys:
        return PublicKeys.from_bytes(self.members[member])

    def is_committed(self, dealer: int, part: int, holder: int, share: bytes) -> bool:
        """Whether a secret share matches the commitment of the member that made the share."""
        committed = self.dealt[dealer].commitments[holder][KEY_BYTES * part : KEY_BYTES * (part + 1)]
        return compare_digest(share_commitment(self.sid, (dealer, holder), part, share), committed)

    def fix_members(self) -> None:
        """Fix the members: derive the session id and the graph from them."""
        self.sid = session_id(self.parameters.to_bytes(), self.members)
        self.graph = graph_of(self.sid, frozenset(self.members), self.parameters.num_neighbours)

    def num_updates(self, members: Collection[int]) -> int:
        """Return how many of the given members send an update."""
        return len(set(members) - self.correctors)

    def num_neighbours(self, member: int, present: Set[int]) -> int:
        """Return how many neighbours a member has among the members that are present."""
        if self.graph.is_complete:
            return len(present) - (member in present)
        return len(self.graph.neighbours(member) & present)

    def fix_survivors(self, fewest: int) -> None:
        """Choose the survivors U3 among the members whose vectors came, and add up their vectors.

        A member that complains about more than half of its neighbours is left out, and its complaints are
        ignored. A member for whose secrets fewer than t present members hold valid shares is left out too,
        since the sum could not be unmasked with it. Lost members with so few shares are the orphans. Nothing
        is added up if fewer than `fewest` are left.
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
            accusers_of = {member: self._who_accuses(member) for member in helpless - self.blamed}
            self.disputed |= {member: accusers for member, accusers in accusers_of.items() if accusers}
            for member in helpless:
                del self.complaints[member]
        self.survivors = tuple(sorted(self.complaints))
        if len(self.survivors) >= fewest:
            self.orphans = tuple(sorted(self._helpless()))
            packed = [self.masked[survivor].packed for survivor in self.survivors]
            add_packed(self.total, packed, self.parameters.modulus_bits)
        self.masked = {}

    def _accused(self) -> Counter[int]:
        """Count how many of the present members complain about each member."""
        return Counter(member for about in self.complaints.values() for member in about)

    def _who_accuses(self, member: int) -> frozenset[int]:
        return frozenset(holder for holder, about in self.complaints.items() if member in about)

    def _helpless(self) -> set[int]:
        """Return the contributors whose secrets cannot be recovered, since too few members hold shares."""
        present, accused = self.complaints.keys(), self._accused()
        return {
            member
            for member in self.contributors
            if self.num_neighbours(member, present) - accused[member] < self.parameters.threshold
        }

    def forget(self) -> None:
        """Erase what the sum no longer needs, in particular all shares of secrets."""
        self.members, self.signatures, self.taken_keys = {}, {}, set()
        self.dealt, self.masked, self.unmask_replies = {}, {}, {}
        self.survivor_signatures = {}
        self.total = np.zeros(0, dtype=np.uint32)


_Bound = ShareReply | MaskReply | CheckReply | UnmaskReply


def take_reply(state: ServerState, stage: Stage, member: int, data: bytes) -> None:
    """Decode a client's reply, check it, and store its content.

    Raises:
        DecodeError: the reply is malformed.
        RemoteProtocolError: the reply does not fit this sum, stage or sender.
    """
    parameters = state.parameters
    if stage is Stage.ADVERTISE:
        _take_keys(state, member, AdvertiseReply.decode(data))
    elif stage is Stage.SHARE:
        dealt = ShareReply.decode(data, parameters.noise_levels)
        _check_bound(state, stage, member, dealt)
        _check_ids(stage, member, dealt.sealed, state.graph.neighbours(member))
        _check_ids(stage, member, dealt.commitments, state.graph.neighbours(member))
        state.dealt[member] = dealt
    elif stage is Stage.MASK:
        reply = MaskReply.decode(data, parameters.dimension, parameters.modulus_bits)
        _check_bound(state, stage, member, reply)
        if reply.context != state.context:
            reason = "its vector was made from something else, such as another model"
            _refuse(stage, member, reason, Cause.OTHER_WORK)
        stray = set(reply.complaints) - (state.graph.neighbours(member) & set(state.contributors))
        if stray:
            _refuse(
                stage, member, f"a complaint about member {min(stray)}, no neighbour of it", Cause.MEMBERS
            )
        state.masked[member] = reply
    elif stage is Stage.CHECK:
        signed = CheckReply.decode(data)
        _check_bound(state, stage, member, signed)
        statement = survivors_statement(state.roster.digest, state.sid, state.contributors, state.survivors)
        if not is_signed(state.roster.get(member), signed.signature, statement):
            _refuse(stage, member, "its signature does not fit the survivors", Cause.SIGNATURE)
        state.survivor_signatures[member] = signed.signature
    else:
        unmasking = UnmaskReply.decode(data, parameters.suite)
        _check_bound(state, stage, member, unmasking)
        near, orphans = state.graph.neighbours(member), frozenset(state.orphans)
        held = near - state.complaints[member]
        survivors = held & set(state.survivors)
        with_noise = parameters.noise_share_at(len(state.contributors), len(state.lost))
        _check_ids(stage, member, unmasking.seed_shares, survivors)
        _check_ids(stage, member, unmasking.key_shares, (held & set(state.lost)) - orphans)
        _check_ids(stage, member, unmasking.noise_shares, survivors if with_noise else frozenset())
        _check_ids(stage, member, unmasking.pair_keys, near & orphans)
        state.unmask_replies[member] = unmasking


def _take_keys(state: ServerState, member: int, reply: AdvertiseReply) -> None:
    stage = Stage.ADVERTISE
    _check_sender(stage, member, reply.sender)
    hashed = hash_parameters(state.parameters)
    if reply.parameters_hash != hashed:
        _refuse(stage, member, "an answer to other parameters", Cause.OTHER_SUM)
    if state.parameters.signs:
        statement = keys_statement(state.roster.digest, hashed, member, reply.keys.to_bytes())
        if not is_signed(state.roster.get(member), reply.signature, statement):
            _refuse(stage, member, "its keys are not signed by its identity", Cause.SIGNATURE)
        state.signatures[member] = reply.signature
    elif reply.signature:
        _refuse(stage, member, "a signature where none is asked for", Cause.SIGNATURE)
    if reply.keys.corrects != (member in state.correctors):
        state.signatures.pop(member, None)
        _refuse(stage, member, "an update in place of none, or none in place of one", Cause.OTHER_WORK)
    for key in (reply.keys.mask_key, reply.keys.seal_key):
        if key in state.taken_keys or not is_sound_public_key(key):
            state.signatures.pop(member, None)
            _refuse(stage, member, f"public key {key.hex()} is unsound or repeats", Cause.KEYS)
        state.taken_keys.add(key)
    state.members[member] = reply.keys.to_bytes()


def _check_sender(stage: Stage, member: int, named: int) -> None:
    if named != member:
        _refuse(stage, member, f"an answer made by member {named}", Cause.OTHER_SUM)


def _check_bound(state: ServerState, stage: Stage, member: int, reply: _Bound) -> None:
    _check_sender(stage, member, reply.sender)
    if reply.sid != state.sid:
        reason = f"sid {reply.sid.hex()[:16]} where {state.sid.hex()[:16]} belongs"
        _refuse(stage, member, reason, Cause.OTHER_SUM)


def _check_ids(stage: Stage, member: int, got: Collection[int], expected: frozenset[int]) -> None:
    odd = set(got) ^ expected
    if odd:
        _refuse(stage, member, f"shares with member {min(odd)} missing or not asked for", Cause.SHARES)


def _refuse(stage: Stage, member: int, reason: str, cause: Cause) -> NoReturn:
    raise RemoteProtocolError(stage, member, reason, cause=cause)
