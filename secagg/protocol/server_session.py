"""The server's side of one secure sum: sends requests, takes replies, and computes the sum."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.crypto.keys import CONTEXT_BYTES
from secagg.crypto.recovery import ShareRecovery
from secagg.crypto.roster import MAX_CLIENT_ID, NOBODY, Roster
from secagg.protocol.parameters import SumParameters
from secagg.protocol.server_state import ServerState, take_reply
from secagg.protocol.sum_messages import (
    AdvertiseRequest,
    CheckRequest,
    MaskRequest,
    ShareRequest,
    UnmaskRequest,
)
from secagg.protocol.transitions import TRANSITIONS, Stage, following
from secagg.protocol.unmasking import remove_masks, remove_noise
from secagg.sum_errors import (
    Cause,
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ThresholdNotMet,
)


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """The result of a secure sum: all that the server learns about the updates.

    Attributes:
        total: uint32[d], the sum of the survivors' residues modulo 2**b, without surplus noise that was
            removed.
        survivors: the clients whose updates are in the sum, ascending.
        num_contributors: n2, the number of updates from which every client's noise and grid follow.
        correctors: the clients in the sum without an update, ascending. With `survivors` they are U3.
        dropped: the asked clients that are not in the sum, ascending.
        bad_shares: (dealer, holder) of each wrong share.
        noise_level: the last part of the survivors' noise that is still in the sum.
    """

    total: NDArray[np.uint32] = field(repr=False)
    survivors: tuple[int, ...]
    num_contributors: int
    dropped: tuple[int, ...]
    bad_shares: tuple[tuple[int, int], ...] = ()
    noise_level: int = 0
    correctors: tuple[int, ...] = ()


class ServerSession:
    """The server's part in one secure sum over the clients `client_ids`.

    In each stage: send `requests`, give every reply to `receive`, then call `close_stage`. Repeat this until
    the session is `done` (after four stages, five in active mode), then read `result`. A client that has not
    answered when a stage closes is dropped.

    In curious mode, members have numbers that are drawn for this sum only, so that they do not learn from the
    messages which clients take part. In active mode members verify each other's signatures, so a member's
    number is its client id.

    A session exists only in memory and cannot be saved: clients keep their secrets for one server process. If
    the process ends, the sum is lost and its round stays charged.

    Args:
        parameters: the sum's public parameters.
        client_ids: the clients asked, exactly `parameters.num_clients` different ids.
        roster: in active mode, the public keys of all members.
        random_bytes: a cryptographic source, n -> n bytes; the members' numbers are drawn from it.
        correctors: the clients that are not asked for an update, `parameters.num_correctors` of them.

    Raises ValueError for another number of ids or correctors, ids that repeat or exceed 64 bits, mode "off",
    and, in active mode, clients that are not in the roster.
    """

    def __init__(
        self,
        parameters: SumParameters,
        client_ids: Iterable[int],
        roster: Roster | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        correctors: Collection[int] = (),
    ) -> None:
        self._asked = tuple(sorted(client_ids))
        different = len(set(self._asked))
        if not different == len(self._asked) == parameters.num_clients:
            raise ValueError(
                f"{len(self._asked)} ids, {different} of them different: give "
                f"{parameters.num_clients} different ones"
            )
        if len(set(correctors)) != parameters.num_correctors or not set(correctors) <= set(self._asked):
            raise ValueError(
                f"{len(set(correctors))} correctors: give {parameters.num_correctors} of the clients asked"
            )
        if not 0 <= self._asked[0] <= self._asked[-1] <= MAX_CLIENT_ID:
            raise ValueError(f"ids {self._asked[0]}..{self._asked[-1]}: use 0 to 2**64 - 1")
        self._state = ServerState(parameters, roster or NOBODY)
        unknown = set(self._asked) - self._state.roster.keys()
        if parameters.signs and unknown:
            raise ValueError(f"client {min(unknown)} is not in the roster: mode active needs all of them")
        if parameters.mode not in TRANSITIONS["server"]:
            raise ValueError(f"mode {parameters.mode} has no sessions: use curious or active")
        self.parameters = parameters
        if parameters.signs:
            self._clients = {client_id: client_id for client_id in self._asked}
        else:
            # Numbers from 0, sorted by 128 random bits each: a uniform order except for ties, of probability
            # below n**2 / 2**129.
            self._clients = dict(enumerate(sorted(self._asked, key=lambda _: random_bytes(16))))
        self._members = {client_id: member for member, client_id in self._clients.items()}
        self._state.correctors = frozenset(self._members[client_id] for client_id in correctors)
        self._stage = Stage.ADVERTISE
        self._pending = set(self._asked)
        self._answered: set[int] = set()
        self._result: MaskedSum

    def __repr__(self) -> str:
        return f"<ServerSession {self.parameters.label!r} {self._stage}>"

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def done(self) -> bool:
        """Whether the sum is complete and `result` can be called."""
        return self._stage is Stage.DONE

    @property
    def pending(self) -> frozenset[int]:
        """The clients that have not answered in this stage yet."""
        return frozenset(self._pending)

    @property
    def blamed(self) -> frozenset[int]:
        """The clients that are certainly at fault in this sum so far, even if the sum has failed.

        They are clients whose reply was refused, that sent a share against its dealer's commitment,
        that dealt wrong shares, about which more than half of their neighbours complain, or that complain
        about more than half of their neighbours.
        """
        return frozenset(self._clients[member] for member in self._state.blamed)

    @property
    def disputed(self) -> dict[int, frozenset[int]]:
        """Map each client left out after complaints to those who complained; either may be at fault.

        Either the few complaints are false, or the client dealt invalid shares only to those who complain.
        """
        of = self._clients
        return {
            of[member]: frozenset(of[accuser] for accuser in accusers)
            for member, accusers in self._state.disputed.items()
        }

    def bind(self, context: bytes) -> None:
        """Set the sum's 32-byte context, such as a hash of the task; refuse vectors made for another context.

        The masks depend on this context (`ClientSession.mask`), and a vector with another context is refused.

        Raises:
            ValueError: the context does not have 32 bytes.
            LocalProtocolError: a masked vector has arrived already, or the stage is over.
        """
        if len(context) != CONTEXT_BYTES:
            raise ValueError(f"a context of {len(context)} bytes: give {CONTEXT_BYTES}")
        advice = "bind before masked vectors come"
        self._following("bind", advice)
        if self._stage is Stage.MASK and self._answered:
            raise LocalProtocolError(f"the sum has masked vectors already: {advice}")
        self._state.context = context

    def requests(self) -> dict[int, bytes]:
        """Return, for each client that has not answered yet, the message to send it in this stage.

        Raises LocalProtocolError if the sum is done or has failed.
        """
        self._following("requests")
        if self._stage in (Stage.ADVERTISE, Stage.MASK):
            of_member = self._advertise_request if self._stage is Stage.ADVERTISE else self._mask_request
            return {client_id: of_member(self._members[client_id]) for client_id in sorted(self._pending)}
        state = self._state
        if self._stage is Stage.SHARE:
            message = ShareRequest(state.members, state.signatures).encode()
        elif self._stage is Stage.CHECK:
            message = CheckRequest(state.sid, state.survivors).encode()
        else:
            told = state.survivors, state.lost, state.orphans
            message = UnmaskRequest(state.sid, *told, state.survivor_signatures).encode()
        return dict.fromkeys(sorted(self._pending), message)

    def receive(self, client_id: int, data: bytes) -> None:
        """Take one client's reply in this stage; raise RemoteProtocolError if the reply is invalid.

        Raises:
            RemoteProtocolError: the reply is invalid, and its sender is dropped; or no reply of this client
                is awaited, because it was not asked, was dropped, or has answered already (its first answer
                is kept). The session goes on.
            LocalProtocolError: the sum is done or has failed.
        """
        self._following("receive")
        if client_id not in self._pending:
            reason = "no answer is awaited: not asked, dropped, or answered"
            raise RemoteProtocolError(self._stage, client_id, reason, Cause.OUT_OF_ORDER)
        self._pending.discard(client_id)
        try:
            take_reply(self._state, self._stage, self._members[client_id], data)
        except (DecodeError, RemoteProtocolError) as error:
            self._state.blamed.add(self._members[client_id])
            if isinstance(error, RemoteProtocolError):
                raise self._about_client(error) from error
            raise RemoteProtocolError(self._stage, client_id, str(error)) from error
        self._answered.add(client_id)

    def close_stage(self) -> None:
        """End the stage with the clients that have answered, and open the next stage.

        Raises:
            ThresholdNotMet: too few clients answered; nothing was unmasked, and the session has failed.
            RemoteProtocolError: shares do not recover a client's secret; the session has failed.
            LocalProtocolError: the sum is done or has failed.
        """
        after = self._following("close_stage")
        stayed = tuple(sorted(self._members[client_id] for client_id in self._answered))
        try:
            asked_next = self._close(stayed)
        except SecAggError as error:
            self._state.forget()
            self._pending, self._answered = set(), set()
            self._stage = Stage.ERROR
            if isinstance(error, RemoteProtocolError):
                raise self._about_client(error) from error
            raise
        self._stage = after
        self._pending, self._answered = {self._clients[member] for member in asked_next}, set()
        if self.done:
            self._state.forget()
            self._pending = set()

    def result(self) -> MaskedSum:
        """Return the sum; raise LocalProtocolError before the sum is complete."""
        self._following("result", "close every stage first")
        return self._result

    def _following(self, call: str, advice: str = "begin a new one") -> Stage:
        after = following(TRANSITIONS["server"], self.parameters.mode, call, self._stage)
        if after is None:
            raise LocalProtocolError(f"{call} on a sum in stage {self._stage}: {advice}")
        return after

    def _about_client(self, error: RemoteProtocolError) -> RemoteProtocolError:
        """Return the same error with the client's id in place of its member number."""
        sender = None if error.sender is None else self._clients[error.sender]
        return RemoteProtocolError(error.stage, sender, error.reason, error.cause)

    def _advertise_request(self, member: int) -> bytes:
        return AdvertiseRequest(self.parameters, member, member in self._state.correctors).encode()

    def _mask_request(self, member: int) -> bytes:
        state = self._state
        near = state.graph.neighbours(member)
        dealers = [dealer for dealer in state.contributors if dealer in near]
        return MaskRequest(
            state.sid,
            state.contributors,
            {dealer: state.dealt[dealer].sealed[member] for dealer in dealers},
            {dealer: state.dealt[dealer].commitments[member] for dealer in dealers},
            self.parameters.noise_levels,
        ).encode()

    def _close(self, stayed: tuple[int, ...]) -> tuple[int, ...]:
        """Close the stage with the members that answered; return the members asked in the next stage."""
        state, parameters = self._state, self.parameters
        if self._stage is Stage.ADVERTISE:
            self._require(len(stayed), parameters.fewest_members)
            self._require(state.num_updates(stayed), parameters.fewest_updates)
            state.fix_members()
        elif self._stage is Stage.SHARE:
            self._require(len(stayed), parameters.fewest_contributors)
            self._require(state.num_updates(stayed), parameters.fewest_updates)
            state.contributors = stayed
            there = frozenset(stayed)
            fewest = min(state.num_neighbours(member, there) for member in stayed)
            self._require(fewest, parameters.threshold)
        elif self._stage is Stage.MASK:
            # Checked before any member is asked to unmask: a smaller sum would carry too little noise.
            need = parameters.fewest_survivors(len(state.contributors))
            self._require(len(stayed), need)
            state.total = np.zeros(parameters.dimension, dtype=np.uint32)
            state.fix_survivors(need)
            self._require(len(state.survivors), need)
            contributed = state.num_updates(state.contributors)
            self._require(state.num_updates(state.survivors), parameters.fewest_summed_updates(contributed))
            return state.survivors
        elif self._stage is Stage.CHECK:
            self._require(len(stayed), parameters.threshold + 1)
        else:
            self._unmask()
        return stayed

    def _require(self, have: int, need: int) -> None:
        if have < need:
            raise ThresholdNotMet(self._stage, have, need)

    def _unmask(self) -> None:
        state = self._state
        recovery = ShareRecovery(self.parameters.threshold, state.blamed)
        remove_masks(state, recovery)
        level = remove_noise(state, recovery)
        state.total &= np.uint32(2**self.parameters.modulus_bits - 1)
        survivors = self._clients_of(state.survivors)
        correctors = self._clients_of(state.correctors.intersection(state.survivors))
        self._result = MaskedSum(
            total=state.total,
            survivors=tuple(sorted(set(survivors).difference(correctors))),
            num_contributors=state.num_updates(state.contributors),
            correctors=correctors,
            dropped=tuple(sorted(set(self._asked) - set(survivors))),
            bad_shares=tuple(
                (self._clients[dealer], self._clients[holder]) for dealer, holder in recovery.bad_shares
            ),
            noise_level=level,
        )

    def _clients_of(self, members: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self._clients[member] for member in members))
