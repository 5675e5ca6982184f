"""The server's side of one sum: who is asked what, who stays, and the sum itself."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from secagg.errors import (
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
    SecAggError,
    ThresholdNotMet,
)
from secagg.keys import is_sound_public_key, session_id
from secagg.messages import (
    AdvertiseReply,
    AdvertiseRequest,
    MaskReply,
    MaskRequest,
    ShareReply,
    ShareRequest,
    UnmaskReply,
    UnmaskRequest,
    hash_parameters,
)
from secagg.parameters import RoundParameters
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


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """What the server learns.

    Attributes:
        total: uint32[d], the sum of the survivors' residues modulo 2**32.
        survivors: the clients in the sum (U3), ascending.
        num_contributors: n2 = |U2|, the count that fixed every client's noise and grid.
        dropped: the clients asked that are not in the sum, ascending.
        bad_shares: (dealer, holder) of shares that were wrong and done without.
    """

    total: NDArray[np.uint32] = field(repr=False)
    survivors: tuple[int, ...]
    num_contributors: int
    dropped: tuple[int, ...]
    bad_shares: tuple[tuple[int, int], ...] = ()


class ServerSession:
    """Drives one sum over `client_ids`.

    In each stage: send `requests`, give every reply to `receive`, then call `close_stage`; four
    times, then `result`. Who has not answered when a stage closes is dropped.

    Args:
        parameters: the sum's public numbers.
        client_ids: the members asked, exactly `parameters.num_clients` different ids.

    Raises:
        ValueError: another number of ids, ids that repeat or exceed 64 bits.
    """

    def __init__(self, parameters: RoundParameters, client_ids: Iterable[int]) -> None:
        self._asked = tuple(sorted(client_ids))
        different = len(set(self._asked))
        if not different == len(self._asked) == parameters.num_clients:
            raise ValueError(
                f"{len(self._asked)} ids, {different} of them different: give "
                f"{parameters.num_clients} different ones"
            )
        if not 0 <= self._asked[0] <= self._asked[-1] <= MAX_CLIENT_ID:
            raise ValueError(f"ids {self._asked[0]}..{self._asked[-1]}: use 0 to 2**64 - 1")
        self.parameters = parameters
        self._stage = Stage.ADVERTISE
        self._pending = set(self._asked)
        self._answered: set[int] = set()
        self._sid = b""
        self._members: dict[int, bytes] = {}
        self._taken_keys: set[bytes] = set()
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._contributors: tuple[int, ...] = ()
        self._survivors: tuple[int, ...] = ()
        self._total = np.zeros(0, dtype=np.uint32)
        self._unmask_replies: dict[int, UnmaskReply] = {}
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

    def requests(self) -> dict[int, bytes]:
        """Client id -> the message to send it in this stage, for each client still awaited.

        Raises:
            LocalProtocolError: the sum is done or has failed.
        """
        self._check_running("requests")
        if self._stage is Stage.MASK:
            return {client_id: self._mask_request(client_id) for client_id in sorted(self._pending)}
        if self._stage is Stage.ADVERTISE:
            message = AdvertiseRequest(self.parameters).encode()
        elif self._stage is Stage.SHARE:
            message = ShareRequest(self._members).encode()
        else:
            message = UnmaskRequest(self._sid, self._survivors, self._lost()).encode()
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
            self._take(client_id, data)
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
            self._forget()
            self._stage = Stage.ERROR
            raise
        self._stage = _NEXT_STAGE[self._stage]
        self._pending, self._answered = set(stayed), set()
        if self.done:
            self._forget()

    def result(self) -> MaskedSum:
        """The sum; LocalProtocolError unless `done`."""
        if self._result is None:
            raise LocalProtocolError(f"no sum in stage {self._stage}: close all four stages first")
        return self._result

    def _check_running(self, call: str) -> None:
        if self._stage not in _NEXT_STAGE:
            raise LocalProtocolError(f"{call} on a sum that is {self._stage}: begin a new one")

    def _take(self, client_id: int, data: bytes) -> None:
        if self._stage is Stage.ADVERTISE:
            self._take_keys(client_id, AdvertiseReply.decode(data))
        elif self._stage is Stage.SHARE:
            self._take_shares(client_id, ShareReply.decode(data))
        elif self._stage is Stage.MASK:
            self._take_vector(client_id, MaskReply.decode(data, self.parameters.dimension))
        else:
            self._take_unmasking(client_id, UnmaskReply.decode(data))

    def _take_keys(self, client_id: int, reply: AdvertiseReply) -> None:
        self._check_sender(client_id, reply.sender)
        if reply.parameters_hash != hash_parameters(self.parameters):
            self._refuse(client_id, "an answer to other parameters")
        for key in (reply.keys.mask_key, reply.keys.seal_key):
            if key in self._taken_keys or not is_sound_public_key(key):
                self._refuse(client_id, f"public key {key.hex()} is unsound or repeats")
            self._taken_keys.add(key)
        self._members[client_id] = reply.keys.to_bytes()

    def _take_shares(self, client_id: int, reply: ShareReply) -> None:
        self._check_bound(client_id, reply)
        self._check_ids(client_id, reply.sealed.keys(), self._members.keys() - {client_id})
        self._sealed[client_id] = reply.sealed

    def _take_vector(self, client_id: int, reply: MaskReply) -> None:
        self._check_bound(client_id, reply)
        self._total += reply.vector

    def _take_unmasking(self, client_id: int, reply: UnmaskReply) -> None:
        self._check_bound(client_id, reply)
        self._check_ids(client_id, reply.seed_shares.keys(), set(self._survivors) - {client_id})
        self._check_ids(client_id, reply.key_shares.keys(), set(self._lost()))
        self._unmask_replies[client_id] = reply

    def _check_sender(self, client_id: int, named: int) -> None:
        if named != client_id:
            self._refuse(client_id, f"an answer made by client {named}")

    def _check_bound(self, client_id: int, reply: ShareReply | MaskReply | UnmaskReply) -> None:
        self._check_sender(client_id, reply.sender)
        if reply.sid != self._sid:
            self._refuse(client_id, f"sid {reply.sid.hex()[:16]} where {self._sid.hex()[:16]} belongs")

    def _check_ids(self, client_id: int, got: Iterable[int], expected: set[int]) -> None:
        odd = set(got) ^ expected
        if odd:
            self._refuse(client_id, f"shares with client {min(odd)} missing or not asked for")

    def _refuse(self, client_id: int, reason: str) -> NoReturn:
        raise RemoteProtocolError(self._stage, client_id, reason)

    def _lost(self) -> tuple[int, ...]:
        return tuple(sorted(set(self._contributors) - set(self._survivors)))

    def _mask_request(self, client_id: int) -> bytes:
        sealed = {
            source: self._sealed[source][client_id] for source in self._contributors if source != client_id
        }
        return MaskRequest(self._sid, sealed).encode()

    def _close(self, stayed: tuple[int, ...]) -> None:
        fewest = self.parameters.fewest_contributors
        if self._stage is Stage.ADVERTISE:
            self._require(stayed, fewest)
            self._sid = session_id(self.parameters.to_bytes(), self._members)
        elif self._stage is Stage.SHARE:
            self._require(stayed, fewest)
            self._contributors = stayed
            self._total = np.zeros(self.parameters.dimension, dtype=np.uint32)
        elif self._stage is Stage.MASK:
            # Checked before anyone is asked to unmask: a smaller set carries too little noise.
            kept = len(self._contributors) - self.parameters.dropout_tolerance
            self._require(stayed, max(kept, self.parameters.threshold + 1))
            self._survivors = stayed
        else:
            self._unmask()

    def _require(self, stayed: tuple[int, ...], need: int) -> None:
        if len(stayed) < need:
            raise ThresholdNotMet(self._stage, len(stayed), need)

    def _unmask(self) -> None:
        bad_shares = remove_masks(
            self._total,
            MaskedRound(self.parameters, self._sid, self._members, self._survivors, self._lost()),
            self._unmask_replies,
        )
        self._result = MaskedSum(
            self._total,
            self._survivors,
            len(self._contributors),
            tuple(sorted(set(self._asked) - set(self._survivors))),
            tuple(bad_shares),
        )

    def _forget(self) -> None:
        """Drop what the sum no longer needs, shares of secrets above all."""
        self._pending, self._answered = set(), set()
        self._members, self._sealed, self._unmask_replies = {}, {}, {}
        self._total = np.zeros(0, dtype=np.uint32)
