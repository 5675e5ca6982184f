"""The server's side of one sum: requests, replies, survivors, and the sum itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secagg.errors import (
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ThresholdNotMet,
)
from secagg.keys import CONTEXT_BYTES
from secagg.messages import AdvertiseRequest, CheckRequest, MaskRequest, ShareRequest, UnmaskRequest
from secagg.noise_removal import remove_noise
from secagg.parameters import ACTIVE, SumParameters
from secagg.recovery import ShareRecovery
from secagg.server_intake import take_reply
from secagg.server_state import ServerState
from secagg.stages import Stage
from secagg.unmasking import MaskedRound, remove_masks
from secagg.wire import MAX_CLIENT_ID

# A missing entry is the error: a sum that is done or has failed has no further stage.
_NEXT_STAGE = {
    Stage.ADVERTISE: Stage.SHARE,
    Stage.SHARE: Stage.MASK,
    Stage.MASK: Stage.UNMASK,
    Stage.UNMASK: Stage.DONE,
}
_NEXT_ACTIVE_STAGE = {**_NEXT_STAGE, Stage.MASK: Stage.CHECK, Stage.CHECK: Stage.UNMASK}


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """The result of a sum, which is all that the server learns.

    Attributes:
        total: uint32[d], the sum of the survivors' residues modulo 2**b, less the noise beyond the
            plan's where that is taken out.
        survivors: the clients in the sum (U3), ascending.
        num_contributors: n2 = |U2|, the count that fixed every client's noise and grid.
        dropped: the clients asked that are not in the sum, ascending.
        bad_shares: (dealer, holder) of shares that were wrong and done without.
        noise_level: up to which part the survivors' noise is still in the sum.
    """

    total: NDArray[np.uint32] = field(repr=False)
    survivors: tuple[int, ...]
    num_contributors: int
    dropped: tuple[int, ...]
    bad_shares: tuple[tuple[int, int], ...] = ()
    noise_level: int = 0


class ServerSession:
    """Drives one sum over `client_ids`.

    In each stage: send `requests`, give every reply to `receive`, then call `close_stage`; until it
    is `done` (after four stages, five in active mode), then `result`. Who has not answered when a
    stage closes is dropped.

    Args:
        parameters: the sum's public numbers.
        client_ids: the members asked, exactly `parameters.num_clients` different ids.
        roster: client id -> registered public key of every member, in active mode.

    Raises:
        ValueError: another number of ids, ids that repeat or exceed 64 bits, or some not in the
            roster in active mode.
    """

    def __init__(
        self,
        parameters: SumParameters,
        client_ids: Iterable[int],
        roster: Mapping[int, bytes] | None = None,
    ) -> None:
        self._asked = tuple(sorted(client_ids))
        different = len(set(self._asked))
        if not different == len(self._asked) == parameters.num_clients:
            raise ValueError(
                f"{len(self._asked)} ids, {different} of them different: give "
                f"{parameters.num_clients} different ones"
            )
        if not 0 <= self._asked[0] <= self._asked[-1] <= MAX_CLIENT_ID:
            raise ValueError(f"ids {self._asked[0]}..{self._asked[-1]}: use 0 to 2**64 - 1")
        self._state = ServerState(parameters, roster or {})
        unknown = set(self._asked) - self._state.roster.keys()
        if parameters.mode == ACTIVE and unknown:
            raise ValueError(f"client {min(unknown)} is not in the roster: mode active needs all of them")
        self.parameters = parameters
        self._next_stage = _NEXT_ACTIVE_STAGE if parameters.mode == ACTIVE else _NEXT_STAGE
        self._stage = Stage.ADVERTISE
        self._pending = set(self._asked)
        self._answered: set[int] = set()
        self._result: MaskedSum | None = None

    def __repr__(self) -> str:
        return f"<ServerSession {self.parameters.label!r} {self._stage}>"

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def done(self) -> bool:
        """Whether `result` is ready."""
        return self._stage is Stage.DONE

    @property
    def pending(self) -> frozenset[int]:
        """The clients whose answer in this stage is still awaited."""
        return frozenset(self._pending)

    def bind(self, context: bytes) -> None:
        """Name, in 32 bytes, what the members make their vectors from, before the first is received.

        It is bound into the masks (`ClientSession.mask`); a vector made from something else is refused.

        Raises:
            ValueError: not 32 bytes.
            LocalProtocolError: the members have their masks already.
        """
        if len(context) != CONTEXT_BYTES:
            raise ValueError(f"a context of {len(context)} bytes: give {CONTEXT_BYTES}")
        if self._stage not in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK) or self._answered_masks():
            raise LocalProtocolError(f"bind on a sum that is {self._stage}: bind before masked vectors come")
        self._state.context = context

    def _answered_masks(self) -> bool:
        return self._stage is Stage.MASK and bool(self._answered)

    def requests(self) -> dict[int, bytes]:
        """Client id -> the message to send it in this stage, for each client still awaited.

        Raises:
            LocalProtocolError: the sum is done or has failed.
        """
        self._check_running("requests")
        if self._stage is Stage.MASK:
            return {client_id: self._mask_request(client_id) for client_id in sorted(self._pending)}
        state = self._state
        if self._stage is Stage.ADVERTISE:
            message = AdvertiseRequest(self.parameters).encode()
        elif self._stage is Stage.SHARE:
            message = ShareRequest(state.members, state.signatures).encode()
        elif self._stage is Stage.CHECK:
            message = CheckRequest(state.sid, state.survivors).encode()
        else:
            signatures = state.survivor_signatures
            message = UnmaskRequest(state.sid, state.survivors, state.lost, signatures).encode()
        return dict.fromkeys(sorted(self._pending), message)

    def receive(self, client_id: int, data: bytes) -> None:
        """Take one client's reply in this stage.

        Raises:
            RemoteProtocolError: the reply is malformed (its sender is dropped), or nobody awaits
                one from this client: it was not asked, was dropped, or has answered already (then
                its first answer stands). The session goes on.
            LocalProtocolError: the sum is done or has failed.
        """
        self._check_running("receive")
        if client_id not in self._pending:
            raise RemoteProtocolError(
                self._stage, client_id, "no answer is awaited: not asked, dropped, or answered"
            )
        self._pending.discard(client_id)
        try:
            take_reply(self._state, self._stage, client_id, data)
        except DecodeError as error:
            raise RemoteProtocolError(self._stage, client_id, str(error)) from error
        self._answered.add(client_id)

    def close_stage(self) -> None:
        """End the stage with those who answered, and open the next.

        Raises:
            ThresholdNotMet: too few answered. Nothing was unmasked; the session has failed.
            RemoteProtocolError: a client's secret cannot be recovered from the shares; failed.
            LocalProtocolError: the sum is done or has failed.
        """
        self._check_running("close_stage")
        stayed = tuple(sorted(self._answered))
        try:
            self._close(stayed)
        except SecAggError:
            self._state.forget()
            self._pending, self._answered = set(), set()
            self._stage = Stage.ERROR
            raise
        self._stage = self._next_stage[self._stage]
        self._pending, self._answered = set(stayed), set()
        if self.done:
            self._state.forget()
            self._pending = set()

    def result(self) -> MaskedSum:
        """The sum; LocalProtocolError unless `done`."""
        if self._result is None:
            raise LocalProtocolError(f"no sum in stage {self._stage}: close every stage first")
        return self._result

    def _check_running(self, call: str) -> None:
        if self._stage not in self._next_stage:
            raise LocalProtocolError(f"{call} on a sum that is {self._stage}: begin a new one")

    def _mask_request(self, client_id: int) -> bytes:
        state = self._state
        near = state.graph.neighbours(client_id)
        sealed = {j: state.sealed[j][client_id] for j in state.contributors if j in near}
        return MaskRequest(state.sid, state.contributors, sealed, self.parameters.noise_levels).encode()

    def _close(self, stayed: tuple[int, ...]) -> None:
        state, parameters = self._state, self.parameters
        if self._stage is Stage.ADVERTISE:
            self._require(len(stayed), parameters.fewest_members)
            state.fix_members()
        elif self._stage is Stage.SHARE:
            self._require(len(stayed), parameters.fewest_contributors)
            self._require(state.fewest_neighbours(stayed, stayed), parameters.threshold)
            state.contributors = stayed
            state.total = np.zeros(parameters.dimension, dtype=np.uint32)
        elif self._stage is Stage.MASK:
            # Checked before anyone is asked to unmask: a smaller set carries too little noise.
            self._require(len(stayed), parameters.fewest_survivors(len(state.contributors)))
            self._require(state.fewest_neighbours(stayed, state.contributors), parameters.threshold)
            state.survivors = stayed
        elif self._stage is Stage.CHECK:
            self._require(len(stayed), parameters.threshold + 1)
        else:
            self._unmask()

    def _require(self, have: int, need: int) -> None:
        if have < need:
            raise ThresholdNotMet(self._stage, have, need)

    def _unmask(self) -> None:
        state = self._state
        masked = MaskedRound(
            self.parameters,
            state.sid,
            state.members,
            state.survivors,
            state.lost,
            state.graph,
            state.noise_commitments,
            state.context,
        )
        recovery = ShareRecovery(self.parameters.threshold)
        remove_masks(state.total, masked, recovery, state.unmask_replies)
        level = remove_noise(state.total, masked, recovery, state.unmask_replies)
        state.total &= np.uint32(2**self.parameters.modulus_bits - 1)
        self._result = MaskedSum(
            state.total,
            state.survivors,
            len(state.contributors),
            tuple(sorted(set(self._asked) - set(state.survivors))),
            tuple(recovery.bad_shares),
            level,
        )
