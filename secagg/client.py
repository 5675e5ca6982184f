"""The client's side of one sum: bytes in, bytes out, no input or output of its own.

Four stages with double masking and Shamir recovery (Bonawitz et al., CCS 2017, figure 4), on the
complete graph of the members.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from secagg.client_checks import check_contributors, check_members, check_survivors
from secagg.client_keys import mask_keys, open_shares, own_public_keys, seal_shares
from secagg.client_state import ClientState
from secagg.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from secagg.keys import SECRET_BYTES, session_id
from secagg.messages import (
    SHARE_BYTES,
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
from secagg.policy import ClientPolicy
from secagg.prg import add_masks
from secagg.stages import ClientStage, Stage
from secagg.wire import MAX_CLIENT_ID

# What may be called when. A missing entry is the error; nothing leads out of CLOSED and ERROR.
_TRANSITIONS = {
    (ClientStage.NEW, "advertise"): ClientStage.ADVERTISED,
    (ClientStage.ADVERTISED, "share"): ClientStage.SHARED,
    (ClientStage.SHARED, "accept_shares"): ClientStage.READY,
    (ClientStage.READY, "mask"): ClientStage.MASKED,
    (ClientStage.MASKED, "unmask"): ClientStage.CLOSED,
}


class ClientSession:
    """One client in one sum.

    Call `advertise`, `share`, `accept_shares`, `mask`, `unmask` once each, in this order. After
    any error the session holds no secret and every further call raises. Between calls it can rest
    as `to_bytes`; a saved state is used once: restoring an old copy and answering again would
    answer twice.

    Args:
        client_id: this client, an unsigned 64-bit number.
        policy: its own limits.
        random_bytes: a cryptographic source, n -> n bytes.

    Raises:
        ValueError: the id does not fit 64 bits.
    """

    def __init__(
        self,
        client_id: int,
        policy: ClientPolicy,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if not 0 <= client_id <= MAX_CLIENT_ID:
            raise ValueError(f"client_id is {client_id}: use 0 to 2**64 - 1")
        self._state = ClientState(client_id)
        self._policy = policy
        self._random_bytes = random_bytes

    def __repr__(self) -> str:
        return f"<ClientSession {self.client_id} {self.stage}>"

    @property
    def client_id(self) -> int:
        return self._state.client_id

    @property
    def stage(self) -> ClientStage:
        return self._state.stage

    @property
    def parameters(self) -> RoundParameters:
        """The sum's public numbers; LocalProtocolError before `advertise`."""
        return self._state.sum_parameters

    def advertise(self, data: bytes) -> bytes:
        """Stage 1: check the parameters against the policy and answer with fresh public keys.

        Raises:
            RemoteProtocolError: malformed, out of order, or against the policy.
            LocalProtocolError: the session has failed before.
        """
        with self._step("advertise", Stage.ADVERTISE):
            parameters = AdvertiseRequest.decode(data).parameters
            self._policy.check(parameters)
            state = self._state
            state.parameters = parameters
            state.mask_private_key = self._random_bytes(SECRET_BYTES)
            state.seal_private_key = self._random_bytes(SECRET_BYTES)
            state.self_seed = self._random_bytes(SECRET_BYTES)
            return AdvertiseReply(
                self.client_id, hash_parameters(parameters), own_public_keys(state)
            ).encode()

    def share(self, data: bytes) -> bytes:
        """Stage 2: take the members' keys and answer with sealed shares of the own secrets.

        Raises:
            RemoteProtocolError: malformed, out of order, too few members, keys that repeat or are
                unsound, or own keys that were changed.
            LocalProtocolError: the session has failed before.
        """
        with self._step("share", Stage.SHARE):
            state, members = self._state, ShareRequest.decode(data).members
            check_members(state, members, own_public_keys(state).to_bytes())
            state.members = members
            state.sid = session_id(self.parameters.to_bytes(), members)
            return ShareReply(self.client_id, state.sid, seal_shares(state, self._random_bytes)).encode()

    def accept_shares(self, data: bytes) -> int:
        """Stage 3, first half: open the others' shares.

        Returns:
            n2 = |U2|, how many members contribute; it fixes the client's noise and grid.

        Raises:
            RemoteProtocolError: malformed, out of order, another sid, too few or unknown members,
                or a sealed share that does not open (sender: the client it came from).
            LocalProtocolError: the session has failed before.
        """
        with self._step("accept_shares", Stage.MASK):
            request = MaskRequest.decode(data)
            check_contributors(self._state, request)
            self._state.held_shares = open_shares(self._state, request.sealed)
            self._state.seal_private_key = b""
            return len(request.sealed) + 1

    def mask(self, residues: NDArray[np.uint32]) -> bytes:
        """Stage 3, second half: answer with the masked vector.

        y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij) modulo 2**32.

        Args:
            residues: uint32[d], the encoded update with its noise.

        Raises:
            LocalProtocolError: another dtype or shape, out of order, or failed before.
            RemoteProtocolError: a member's key that agrees on no secret.
        """
        with self._step("mask", Stage.MASK, from_server=False):
            dimension = self.parameters.dimension
            if residues.dtype != np.uint32 or residues.shape != (dimension,):
                raise LocalProtocolError(
                    f"residues are {residues.dtype}{list(residues.shape)}: give uint32[{dimension}]"
                )
            vector = np.array(residues, order="C")
            add_masks(vector, mask_keys(self._state), self.parameters.suite)
            self._state.erase_own_secrets()
            return MaskReply(self.client_id, self._state.sid, vector).encode()

    def unmask(self, data: bytes) -> bytes:
        """Stage 4: answer with the seed's share of each survivor, the key's of each dropped member.

        Raises:
            RemoteProtocolError: malformed, out of order, another sid, or lists that overlap, hold
                strangers, leave someone out, miss this client or have too few survivors.
            LocalProtocolError: the session has failed before.
        """
        with self._step("unmask", Stage.UNMASK):
            request = UnmaskRequest.decode(data)
            check_survivors(self._state, request)
            held = self._state.held_shares
            reply = UnmaskReply(
                self.client_id,
                request.sid,
                {j: held[j][:SHARE_BYTES] for j in request.survivors if j != self.client_id},
                {j: held[j][SHARE_BYTES:] for j in request.dropped},
            ).encode()
            self._state.erase()
            return reply

    def erase(self) -> None:
        """End the session and forget its secrets; it answers nothing afterwards."""
        self._state.erase()
        if self._state.stage is not ClientStage.ERROR:
            self._state.stage = ClientStage.CLOSED

    def to_bytes(self) -> bytes:
        """The session at rest. It holds the secrets: keep it as such, and only the newest."""
        return self._state.to_bytes()

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        policy: ClientPolicy,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> "ClientSession":
        """Go on with a session that rested as `to_bytes`.

        Raises:
            LocalProtocolError: the bytes are no saved session.
        """
        try:
            state = ClientState.from_bytes(data)
        except DecodeError as error:
            raise LocalProtocolError(f"the saved session is not readable: {error}") from error
        session = cls(state.client_id, policy, random_bytes)
        session._state = state
        return session

    @contextmanager
    def _step(self, call: str, stage: Stage, *, from_server: bool = True) -> Iterator[None]:
        """One move along the transition table; any error ends the session and its secrets."""
        try:
            following = self._following(call, stage, from_server)
            yield
        except DecodeError as error:
            self._fail()
            raise RemoteProtocolError(stage, None, str(error)) from error
        except BaseException:
            self._fail()
            raise
        self._state.stage = following

    def _following(self, call: str, stage: Stage, from_server: bool) -> ClientStage:
        following = _TRANSITIONS.get((self._state.stage, call))
        if following is not None:
            return following
        if self._state.stage is ClientStage.ERROR:
            raise LocalProtocolError(f"{call} after an error: begin a new session")
        reason = f"{call} in a session that is {self._state.stage}"
        if from_server:
            raise RemoteProtocolError(stage, None, f"{reason}: each stage is answered once")
        raise LocalProtocolError(f"{reason}: call accept_shares first and mask once")

    def _fail(self) -> None:
        self._state.erase()
        self._state.stage = ClientStage.ERROR
