"""The client's side of one sum: bytes in, bytes out, no input or output of its own.

Double masking and Shamir recovery (Bonawitz et al., CCS 2017, figure 4), on the complete graph of
the members or a sparse one (Bell et al., CCS 2020), with a check stage if the server may lie.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from secagg.client_checks import (
    Roster,
    check_announced,
    check_contributors,
    check_members,
    check_signed_members,
    check_signed_survivors,
    check_survivors,
)
from secagg.client_keys import (
    draw_noise,
    mask_keys,
    open_shares,
    own_noise_commitment,
    own_public_keys,
    revealed_shares,
    seal_shares,
)
from secagg.client_state import ClientState
from secagg.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from secagg.identity import Identity, keys_statement, survivors_statement
from secagg.keys import CONTEXT_BYTES, NO_CONTEXT, SECRET_BYTES, session_id
from secagg.messages import (
    AdvertiseReply,
    AdvertiseRequest,
    CheckReply,
    CheckRequest,
    MaskReply,
    MaskRequest,
    ShareReply,
    ShareRequest,
    UnmaskRequest,
    hash_parameters,
)
from secagg.parameters import ACTIVE, SumParameters
from secagg.policy import ClientPolicy
from secagg.prg import add_masks
from secagg.stages import ClientStage, Stage
from secagg.wire import MAX_CLIENT_ID

# What may be called when. A missing entry is the error; nothing leads out of CLOSED and ERROR.
_TRANSITIONS = {
    (ClientStage.NEW, "advertise"): ClientStage.ADVERTISED,
    (ClientStage.ADVERTISED, "share"): ClientStage.SHARED,
    (ClientStage.SHARED, "accept_shares"): ClientStage.READY,
    (ClientStage.READY, "noise_steps"): ClientStage.READY,
    (ClientStage.READY, "mask"): ClientStage.MASKED,
    (ClientStage.MASKED, "unmask"): ClientStage.CLOSED,
}
_ACTIVE_TRANSITIONS = {
    **{move: stage for move, stage in _TRANSITIONS.items() if move[1] != "unmask"},
    (ClientStage.MASKED, "check"): ClientStage.CHECKED,
    (ClientStage.CHECKED, "unmask"): ClientStage.CLOSED,
}


class ClientSession:
    """One client in one sum.

    Call `advertise`, `share`, `accept_shares`, `mask`, in active mode `check`, and `unmask` once
    each, in this order; `noise_steps` between the third and the fourth. After any error the session
    holds no secret and every further call raises. Between calls it can rest as `to_bytes`; a saved
    state is used once: restoring an old copy and answering again would answer twice.

    Args:
        client_id: this client, an unsigned 64-bit number.
        policy: its own limits.
        random_bytes: a cryptographic source, n -> n bytes.
        identity: this client's signing key, for active mode.
        roster: client id -> registered public key, for active mode. Neither rests with the session.

    Raises:
        ValueError: the id does not fit 64 bits, or the roster has another key for this client.
    """

    def __init__(
        self,
        client_id: int,
        policy: ClientPolicy,
        random_bytes: Callable[[int], bytes] = os.urandom,
        identity: Identity | None = None,
        roster: Roster | None = None,
    ) -> None:
        if not 0 <= client_id <= MAX_CLIENT_ID:
            raise ValueError(f"client_id is {client_id}: use 0 to 2**64 - 1")
        if identity and roster is not None and roster.get(client_id) != identity.public_bytes():
            raise ValueError(f"the roster has another key for client {client_id}: register it first")
        self._identity = identity
        self._roster = roster or {}
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
    def parameters(self) -> SumParameters:
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
            if parameters.mode == ACTIVE and not (self._identity and self._roster):
                raise RemoteProtocolError(
                    Stage.ADVERTISE, None, "mode active, but this client has no identity or no roster"
                )
            state = self._state
            state.parameters = parameters
            state.mask_private_key = self._random_bytes(SECRET_BYTES)
            state.seal_private_key = self._random_bytes(SECRET_BYTES)
            state.self_seed = self._random_bytes(SECRET_BYTES)
            state.base_noise_seed = self._random_bytes(SECRET_BYTES)
            state.noise_seed = self._random_bytes(SECRET_BYTES)
            hashed, keys = hash_parameters(parameters), own_public_keys(state)
            signature = self._signature(keys_statement(hashed, self.client_id, keys.to_bytes()))
            return AdvertiseReply(self.client_id, hashed, keys, signature).encode()

    def share(self, data: bytes) -> bytes:
        """Stage 2: take the members' keys and answer with sealed shares of the own secrets.

        Raises:
            RemoteProtocolError: malformed, out of order, too few members, keys that repeat or are
                unsound, or own keys that were changed.
            LocalProtocolError: the session has failed before.
        """
        with self._step("share", Stage.SHARE):
            state, request = self._state, ShareRequest.decode(data)
            check_members(state, request.members, own_public_keys(state).to_bytes())
            if self.parameters.mode == ACTIVE:
                check_signed_members(state, request, self._roster)
            state.members = request.members
            state.sid = session_id(self.parameters.to_bytes(), request.members)
            return ShareReply(
                self.client_id,
                state.sid,
                seal_shares(state, self._random_bytes),
                own_noise_commitment(state),
                self.parameters.noise_levels,
            ).encode()

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
            request = MaskRequest.decode(data, self.parameters.noise_levels)
            check_contributors(self._state, request)
            self._state.contributors = request.contributors
            self._state.held_shares = open_shares(self._state, request.sealed)
            self._state.seal_private_key = b""
            return len(request.contributors)

    def noise_steps(self) -> NDArray[np.int64]:
        """Stage 3, between the halves: this client's discrete Gaussian noise, in steps: int64[d].

        All parts together, on the grid of `parameters.encoding(n2)`: add it to the encoded update.
        With noise levels no other noise will do, for the server takes out parts of this one. The
        same at every call.

        Raises:
            LocalProtocolError: out of order, or the session has failed before.
            EncodingError: the noise does not fit the modulus.
        """
        with self._step("noise_steps", Stage.MASK, from_server=False):
            return draw_noise(self._state)

    def mask(self, residues: NDArray[np.uint32], context: bytes = NO_CONTEXT) -> bytes:
        """Stage 3, second half: answer with the masked vector.

        y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij) modulo 2**32.

        Args:
            residues: uint32[d], the encoded update with its noise.
            context: 32 bytes that name what the update was made from, as a hash of the model does. The
                masks of members with different contexts do not cancel, so a server that shows one member
                another model learns nothing from the sum (Pasquini et al., CCS 2022).

        Raises:
            LocalProtocolError: another dtype, shape or length of the context, out of order, or failed before.
            RemoteProtocolError: a member's key that agrees on no secret.
        """
        with self._step("mask", Stage.MASK, from_server=False):
            dimension = self.parameters.dimension
            if residues.dtype != np.uint32 or residues.shape != (dimension,):
                raise LocalProtocolError(
                    f"residues are {residues.dtype}{list(residues.shape)}: give uint32[{dimension}]"
                )
            if len(context) != CONTEXT_BYTES:
                raise LocalProtocolError(f"a context of {len(context)} bytes: give {CONTEXT_BYTES}")
            vector = np.array(residues, order="C")
            add_masks(vector, mask_keys(self._state, context), self.parameters.suite)
            self._state.erase_own_secrets()
            bits = self.parameters.modulus_bits
            return MaskReply(self.client_id, self._state.sid, context, vector, bits).encode()

    def check(self, data: bytes) -> bytes:
        """Between stages 3 and 4 in active mode: sign the survivors, once.

        Raises:
            RemoteProtocolError: malformed, out of order, another sid, or survivors that `unmask`
                would refuse.
            LocalProtocolError: the session has failed before.
        """
        with self._step("check", Stage.CHECK):
            state, request = self._state, CheckRequest.decode(data)
            check_announced(state, request)
            state.survivors = request.survivors
            statement = survivors_statement(state.sid, state.contributors, state.survivors)
            return CheckReply(self.client_id, state.sid, self._signature(statement)).encode()

    def unmask(self, data: bytes) -> bytes:
        """Stage 4: answer with the seed's share of each survivor, the key's of each dropped member.

        With noise levels, also a share of the first noise seed that so few dropped do not need.

        Raises:
            RemoteProtocolError: malformed, out of order, another sid, or lists that overlap, hold
                strangers, leave someone out, miss this client or have too few survivors; in active
                mode, a signature that fails or fewer than t of them.
            LocalProtocolError: the session has failed before.
        """
        with self._step("unmask", Stage.UNMASK):
            request = UnmaskRequest.decode(data)
            check_survivors(self._state, request)
            if self.parameters.mode == ACTIVE:
                check_signed_survivors(self._state, request, self._roster)
            reply = revealed_shares(self._state, request).encode()
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
        identity: Identity | None = None,
        roster: Roster | None = None,
    ) -> "ClientSession":
        """Go on with a session that rested as `to_bytes`.

        Raises:
            LocalProtocolError: the bytes are no saved session.
        """
        try:
            state = ClientState.from_bytes(data)
        except DecodeError as error:
            raise LocalProtocolError(f"the saved session is not readable: {error}") from error
        session = cls(state.client_id, policy, random_bytes, identity, roster)
        session._state = state
        return session

    def _signature(self, statement: bytes) -> bytes:
        """Empty unless the server may lie."""
        if self.parameters.mode != ACTIVE or self._identity is None:
            return b""
        return self._identity.sign(statement)

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
        known = self._state.parameters
        table = _ACTIVE_TRANSITIONS if known and known.mode == ACTIVE else _TRANSITIONS
        following = table.get((self._state.stage, call))
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
