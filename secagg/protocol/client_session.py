"""The client's side of one secure sum: a state machine that takes and returns bytes, without a network.

The protocol has double masking and Shamir recovery (Bonawitz et al., CCS 2017, figure 4). The graph of the
members is complete or sparse (Bell et al., CCS 2020). If the server may lie, there is a check stage.
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

    Call `advertise`, `share`, `accept_shares`, `mask`, in active mode `check`, and `unmask`, each once and in
    this order. After any error the session holds no secrets, and every further call raises an error. Between
    calls the session can be saved with `to_bytes`. Restore each saved state at most once: a session restored
    from an older copy would answer a stage twice.

    Args:
        client_id: this client's id, an unsigned 64-bit number. Other members see it only in active mode; in
            curious mode they see `member`, a number that is drawn for this sum.
        policy: this client's limits.
        random_bytes: a cryptographic source, n -> n bytes.
        identity: this client's signing key, for active mode; it is not saved with the session.
        roster: the clients' public keys, for active mode; it is not saved with the session.

    Raises ValueError if the id does not fit 64 bits, or if the roster has another key for this client.
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
        """The members whose shares this client failed to decrypt; the server learns of them, and goes on."""
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
        """The member numbers of all that were asked for an update, dropouts included; empty after `mask`."""
        return frozenset(self._state.members).difference(self._state.correctors)

    @property
    def correctors(self) -> frozenset[int]:
        """The member numbers of those that send no update, but may hold shares of this client's secrets."""
        return frozenset(self._state.correctors)

    @property
    def parameters(self) -> SumParameters:
        """The sum's public parameters; raises LocalProtocolError before `advertise`."""
        return self._state.sum_parameters

    def advertise(self, data: bytes) -> bytes:
        """Stage 1: check the sum's parameters against this client's policy; answer with fresh public keys.

        Raises:
            RemoteProtocolError: the request is malformed, out of order, or against the policy.
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
            RemoteProtocolError: the request is malformed or out of order, or has too few members, keys that
                repeat, are unsound or not signed, or a changed key of this client.
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
        """Stage 3, first half: decrypt members' secret shares; return how many members send an update.

        If a member's shares cannot be decrypted or do not fit their commitments, this client goes on without
        them and names the member in its answer (`complaints`). Returns n2, the number of members that
        contribute an update; the client's noise and grid follow from it.

        Raises:
            RemoteProtocolError: the request is malformed, out of order, of another sum (sid), or has too few
                or unknown members.
            LocalProtocolError: the session has failed before.
        """
        with self._step("accept_shares", Stage.MASK):
            state, request = self._state, MaskRequest.decode(data, self.parameters.noise_levels)
            check_contributors(state, request)
            state.contributors = request.contributors
            state.held_shares = open_shares(state, request)
            state.complaints = tuple(sorted(request.sealed.keys() - state.held_shares.keys()))
            state.erase_seals()
            return state.num_updates(request.contributors)

    def encoding(self) -> Encoding:
        """Return the integer grid of updates for `mask`; raise LocalProtocolError before `accept_shares`."""
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
            steps: int64[d], the update without noise, made by `Encoding.encode`. A member without an update
                gives what it takes back, made by `Encoding.encode_noise`, and no noise. A `HeldVector` is
                such a vector on a GPU; it may contain the caller's noise.
            context: 32 bytes that name what the update was made from, for example a hash of the model. Masks
                of members with different contexts do not cancel. So a server that gives one member another
                model learns nothing from the sum (Pasquini et al., CCS 2022).
            noise: int64[d], the caller's noise on the same grid; or "discrete_gaussian", for noise that the
                session draws from its own seeds. A sum with noise levels needs the latter, since the server
                removes parts of the noise. None if the sum has no noise, or `steps` contains it. There is no
                default law, since the accounting depends on the law.

        Raises:
            LocalProtocolError: an array of another dtype or shape; a context of another length; noise that is
                missing, too small, or not allowed in this sum; a call out of order or after a failure.
            EncodingError: no integer grid fits the numbers of the sum.
            RemoteProtocolError: no secret can be agreed on with a member's key.
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
            RemoteProtocolError: the request is malformed, out of order, of another sum (sid), or has
                survivors that `unmask` would refuse.
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

        For an orphan, a dropped member with too few shares, it is the key of the mask with it instead. With
        noise levels, also a share of each survivor's first noise seed that is not needed for so few dropouts.

        Raises:
            RemoteProtocolError: the request is malformed, out of order or of another sum (sid); its lists
                overlap, have unknown members, omit a member, or have too few survivors or not this client;
                or, in active mode, a signature is wrong or there are fewer than t.
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

        Raises LocalProtocolError if the bytes are not a saved session.
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
        """Run a session call if this stage allows it; any error ends the session and erases its secrets."""
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
