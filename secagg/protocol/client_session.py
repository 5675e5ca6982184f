"""The client's side of one secure sum: a state machine that takes and returns bytes, without a network.

Double masking and Shamir recovery (Bonawitz et al., CCS 2017, figure 4), on the complete graph of
the members or a sparse one (Bell et al., CCS 2020), with a check stage if the server may lie.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.encoding import Encoding
from secagg.crypto.keys import CONTEXT_BYTES, NO_CONTEXT, SECRET_BYTES, correctors_among, session_id
from secagg.crypto.roster import MAX_CLIENT_ID, NOBODY, Roster
from secagg.crypto.signatures import Identity, keys_statement, survivors_statement
from secagg.protocol.client_checks import (
    check_announced,
    check_contributors,
    check_members,
    check_mode,
    check_signed_members,
    check_signed_survivors,
    check_survivors,
)
from secagg.protocol.client_keys import (
    Noise,
    deal_shares,
    masked_vector,
    open_shares,
    own_public_keys,
    pair_keys,
    revealed_shares,
)
from secagg.protocol.client_state import ClientState
from secagg.protocol.held_vector import HeldVector
from secagg.protocol.parameters import CURIOUS, SumParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.sum_messages import (
    AdvertiseReply,
    AdvertiseRequest,
    CheckReply,
    CheckRequest,
    MaskReply,
    MaskRequest,
    ShareRequest,
    UnmaskRequest,
    hash_parameters,
)
from secagg.protocol.transitions import TRANSITIONS, ClientStage, Stage, following
from secagg.sum_errors import Cause, DecodeError, LocalProtocolError, RemoteProtocolError


class ClientSession:
    """One client in one secure sum, from advertising keys to sending the shares that unmask the sum.

    Call `advertise`, `share`, `accept_shares`, `mask`, in active mode `check`, and `unmask` once
    each, in this order. After any error the session holds no secret and every further call raises.
    Between calls it can rest as `to_bytes`; a saved state is used once: restoring an old copy and
    answering again would answer twice.

    Args:
        client_id: this client, an unsigned 64-bit number. Others see it in active mode only; in a
            curious sum they see `member`, a number drawn for this sum.
        policy: its own limits.
        random_bytes: a cryptographic source, n -> n bytes.
        identity: this client's signing key, for active mode.
        roster: whose key is whose, for active mode. Neither rests with the session.

    Raises ValueError: the id does not fit 64 bits, or the roster has another key for this client.
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
        self._roster = roster or NOBODY
        self._state = ClientState(client_id)
        self._policy = policy
        self._random_bytes = random_bytes

    def __repr__(self) -> str:
        return f"<ClientSession {self.client_id} {self.stage}>"

    @property
    def client_id(self) -> int:
        return self._state.client_id

    @property
    def member(self) -> int:
        """This client's number in the sum; 0 before `advertise`."""
        return self._state.member

    @property
    def complaints(self) -> tuple[int, ...]:
        """The members whose shares this client could not decrypt; the server is told, and the sum goes on."""
        return self._state.complaints

    @property
    def stage(self) -> ClientStage:
        return self._state.stage

    @property
    def corrects(self) -> bool:
        """Whether this client sends no update and only subtracts noise that it added to earlier sums."""
        return self._state.corrects

    @property
    def updates(self) -> frozenset[int]:
        """The numbers of the members that send an update; an empty set before `accept_shares`."""
        return frozenset(self._state.contributors).difference(self._state.correctors)

    @property
    def parameters(self) -> SumParameters:
        """The sum's public parameters; raises LocalProtocolError before `advertise`."""
        return self._state.sum_parameters

    def advertise(self, data: bytes) -> bytes:
        """Stage 1: check the sum's parameters against this client's policy; answer with fresh public keys.

        Raises:
            RemoteProtocolError: malformed, out of order, or against the policy.
            LocalProtocolError: the session has failed before.
        """
        with self._step("advertise", Stage.ADVERTISE):
            request = AdvertiseRequest.decode(data)
            parameters = request.parameters
            self._policy.check(parameters)
            state = self._state
            check_mode(state.client_id, request, can_sign=bool(self._identity and self._roster))
            state.parameters, state.member, state.corrects = parameters, request.member, request.corrects
            state.mask_private_key = self._random_bytes(SECRET_BYTES)
            state.seal_private_key = self._random_bytes(SECRET_BYTES)
            state.self_seed = self._random_bytes(SECRET_BYTES)
            state.base_noise_seed = self._random_bytes(SECRET_BYTES)
            state.noise_seed = self._random_bytes(SECRET_BYTES)
            hashed, keys = hash_parameters(parameters), own_public_keys(state)
            signature, signer = b"", self._signer
            if signer is not None:
                digest = self._roster.digest
                signature = signer.sign(keys_statement(digest, hashed, state.member, keys.to_bytes()))
            return AdvertiseReply(state.member, hashed, keys, signature).encode()

    def share(self, data: bytes) -> bytes:
        """Stage 2: take the members' public keys, and answer with encrypted shares of this client's secrets.

        Raises:
            RemoteProtocolError: malformed, out of order, too few members, keys that repeat or are
                unsound, or own keys that were changed.
            LocalProtocolError: the session has failed before.
        """
        with self._step("share", Stage.SHARE):
            state, request = self._state, ShareRequest.decode(data)
            corrupt = self._policy.own_corrupt(self.parameters)
            check_members(state, request.members, own_public_keys(state).to_bytes(), corrupt)
            if self.parameters.signs:
                check_signed_members(state, request, self._roster)
            state.members, state.correctors = request.members, correctors_among(request.members)
            state.sid = session_id(self.parameters.to_bytes(), request.members)
            return deal_shares(state, self._random_bytes).encode()

    def accept_shares(self, data: bytes) -> int:
        """Stage 3, first half: decrypt the shares that other members sent to this one.

        Who sealed what does not open, or does not fit the commitments that came with it, is complained about
        in the answer (`complaints`): this client holds no share of it, and goes on. Returns n2, how many
        members contribute an update; it fixes the client's noise and grid.

        Raises:
            RemoteProtocolError: malformed, out of order, another sid, or too few or unknown members.
            LocalProtocolError: the session has failed before.
        """
        with self._step("accept_shares", Stage.MASK):
            state, request = self._state, MaskRequest.decode(data, self.parameters.noise_levels)
            check_contributors(state, request)
            state.contributors = request.contributors
            state.held_shares = open_shares(state, request)
            state.complaints = tuple(sorted(request.sealed.keys() - state.held_shares.keys()))
            state.seal_private_key = b""
            return state.num_updates(request.contributors)

    def encoding(self) -> Encoding:
        """Return the integer grid of the sum, for `mask`; raise LocalProtocolError before `accept_shares`."""
        return self._state.encoding()

    def mask(
        self,
        steps: NDArray[np.int64] | HeldVector,
        context: bytes = NO_CONTEXT,
        *,
        noise: Noise = None,
    ) -> bytes:
        """Stage 3, second half: add noise and masks to the update, and return the masked vector.

        y_i = x_i + z_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij) modulo 2**b, z_i being
        this client's noise of standard deviation `client_noise_stddev`.

        Args:
            steps: int64[d], the update without noise as `encoding` gives it; of a member without one what it
                takes back, as `encode_noise` gives it, and no noise. Or such a vector on a GPU, with noise of
                the caller's own in it or none.
            context: 32 bytes that name what the update was made from, as a hash of the model does. The
                masks of members with different contexts do not cancel, so a server that shows one member
                another model learns nothing from the sum (Pasquini et al., CCS 2022).
            noise: int64[d], noise of the caller's own, on the same grid; or "discrete_gaussian", which the
                session draws from its own seeds. Where the sum has noise levels nothing else will do, for
                the server takes out parts of it. None where the sum has no noise: which law it has is
                accounted elsewhere, so no session chooses it.

        Raises:
            LocalProtocolError: another dtype or shape, a context of another length, no noise where the sum
                has some, noise that is less than the sum's or where it has none or levels, out of order, or
                failed before.
            EncodingError: the noise does not fit the modulus.
            RemoteProtocolError: a member's key that agrees on no secret.
        """
        with self._step("mask", Stage.MASK, from_server=False):
            state, parameters = self._state, self.parameters
            if len(context) != CONTEXT_BYTES:
                raise LocalProtocolError(f"a context of {len(context)} bytes: give {CONTEXT_BYTES}")
            state.pair_keys = pair_keys(state, context)
            packed = masked_vector(state, steps, noise)
            state.erase_own_secrets()
            sizes = parameters.dimension, parameters.modulus_bits
            return MaskReply(state.member, state.sid, context, state.complaints, packed, *sizes).encode()

    def check(self, data: bytes) -> bytes:
        """Between stages 3 and 4, if the server may lie: sign the list of survivors, and sign only once.

        Raises:
            RemoteProtocolError: malformed, out of order, another sid, or survivors that `unmask`
                would refuse.
            LocalProtocolError: the session has failed before.
        """
        with self._step("check", Stage.CHECK):
            state, request = self._state, CheckRequest.decode(data)
            check_announced(state, request)
            state.survivors = request.survivors
            signature, signer = b"", self._signer
            if signer is not None:
                digest = self._roster.digest
                signature = signer.sign(
                    survivors_statement(digest, state.sid, state.contributors, state.survivors)
                )
            return CheckReply(state.member, state.sid, signature).encode()

    def unmask(self, data: bytes) -> bytes:
        """Stage 4: return a share of each survivor's seed, and a share of each dropped member's key.

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
            if self.parameters.signs:
                check_signed_survivors(self._state, request, self._roster)
            reply = revealed_shares(self._state, request).encode()
            self._state.erase()
            return reply

    def erase(self) -> None:
        """End the session and erase its secrets; it answers nothing afterwards."""
        self._state.erase()
        if self._state.stage is not ClientStage.ERROR:
            self._state.stage = ClientStage.CLOSED

    def to_bytes(self) -> bytes:
        """Return the session as bytes, which contain its secrets: protect them, and keep only the newest."""
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
        """Restore a session that `to_bytes` saved.

        Raises LocalProtocolError: the bytes are not a saved session.
        """
        try:
            state = ClientState.from_bytes(data)
        except DecodeError as error:
            raise LocalProtocolError(
                f"the saved session is not readable: {error}; begin a new session"
            ) from error
        session = cls(state.client_id, policy, random_bytes, identity, roster)
        session._state = state
        return session

    @property
    def _signer(self) -> Identity | None:
        """This client's signing key if the server may lie; None in curious mode, where nothing is signed."""
        return self._identity if self.parameters.signs else None

    @contextmanager
    def _step(self, call: str, stage: Stage, *, from_server: bool = True) -> Iterator[None]:
        """Run a call of the session if it is due now; any error ends the session and erases its secrets."""
        try:
            after = self._following(call, stage, from_server)
            yield
        except DecodeError as error:
            self._fail()
            raise RemoteProtocolError(stage, None, str(error)) from error
        except BaseException:
            self._fail()
            raise
        self._state.stage = after

    def _following(self, call: str, stage: Stage, from_server: bool) -> ClientStage:
        known = self._state.parameters
        mode = known.mode if known else CURIOUS  # The first step is the same in both modes.
        after = following(TRANSITIONS["client"], mode, call, self._state.stage)
        if after is not None:
            return after
        if self._state.stage is ClientStage.ERROR:
            raise LocalProtocolError(f"{call} after an error: begin a new session")
        reason = f"{call} in a session that is {self._state.stage}"
        if from_server:
            reason += ": each stage is answered once"
            raise RemoteProtocolError(stage, None, reason, Cause.OUT_OF_ORDER)
        raise LocalProtocolError(f"{reason}: call accept_shares first and mask once")

    def _fail(self) -> None:
        self._state.erase()
        self._state.stage = ClientStage.ERROR
