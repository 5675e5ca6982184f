"""What a client computes from its secrets: keys, encrypted shares, noise and the masked vector."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hmac import compare_digest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.discrete_gaussian import sample
from secagg.arithmetic.packing import pack, packed_bytes
from secagg.crypto.keys import (
    NONCE_BYTES,
    PrivateKey,
    PublicKeys,
    Sealing,
    commitment,
    context_of,
    noise_commitment,
    noise_key,
    noise_seeds,
    pair_mask_key,
    self_mask_key,
    share_commitment,
)
from secagg.crypto.prg import add_masks
from secagg.crypto.shamir import split
from secagg.protocol.client_state import ClientState
from secagg.protocol.held_vector import HeldVector, NoisePart
from secagg.protocol.sum_messages import (
    SHARE_BYTES,
    MaskRequest,
    ShareReply,
    UnmaskReply,
    UnmaskRequest,
    held_bytes,
)
from secagg.protocol.transitions import Stage
from secagg.sum_errors import Cause, LocalProtocolError, RemoteProtocolError


def own_public_keys(state: ClientState) -> PublicKeys:
    """Return the public keys that this client sends in stage 1 (advertise)."""
    return PublicKeys(
        PrivateKey(state.mask_private_key).public_bytes(),
        PrivateKey(state.seal_private_key).public_bytes(),
        commitment(state.self_seed),
        state.corrects,
    )


def deal_shares(state: ClientState, random_bytes: Callable[[int], bytes]) -> ShareReply:
    """Split this client's secrets into shares, one set for each neighbour, encrypted and committed to.

    Each secret is split among the neighbours by their Shamir numbers. The share for this client's own number
    is discarded, so that only other members can recover the secret.
    """
    holders, threshold = state.graph().holders(state.member), state.sum_parameters.threshold
    levels = state.sum_parameters.noise_levels
    secrets = [state.self_seed, state.mask_private_key, *noise_seeds(state.noise_seed, levels)]
    split_up = [split(secret, len(holders), threshold, random_bytes) for secret in secrets]
    private_key = PrivateKey(state.seal_private_key)
    sealed: dict[int, bytes] = {}
    commitments: dict[int, bytes] = {}
    for holder, number in holders.items():
        if holder != state.member:
            with _blaming(Stage.SHARE, holder):
                sealing = _sealing(state, private_key, holder, (state.member, holder))
            shares = [of_secret[number - 1] for of_secret in split_up]
            sealed[holder] = sealing.seal(b"".join(shares), random_bytes(NONCE_BYTES))
            commitments[holder] = _commitments(state.sid, (state.member, holder), shares)
    committed = noise_commitment(state.noise_seed, levels) if levels else b""
    return ShareReply(state.member, state.sid, sealed, commitments, committed, levels)


def open_shares(state: ClientState, request: MaskRequest) -> dict[int, bytes]:
    """Decrypt the secret shares that other members sent to this client; leave out those that are invalid.

    Shares are invalid if they cannot be decrypted or do not fit the dealer's commitments: because they were
    changed on the way, belong to another sum, or were made wrongly.
    """
    private_key = PrivateKey(state.seal_private_key)
    opened: dict[int, bytes] = {}
    for dealer, sealed in request.sealed.items():
        sealing = _sealing(state, private_key, dealer, (dealer, state.member))
        shares = sealing.open(sealed)
        if shares is None or len(shares) != held_bytes(state.sum_parameters.noise_levels):
            continue
        parts = [shares[at : at + SHARE_BYTES] for at in range(0, len(shares), SHARE_BYTES)]
        committed = _commitments(state.sid, (dealer, state.member), parts)
        if compare_digest(committed, request.commitments[dealer]):
            opened[dealer] = shares
    return opened


def revealed_shares(state: ClientState, request: UnmaskRequest) -> UnmaskReply:
    """Return the secret shares that the server asks for, but never both seed and key shares of one member."""
    held, parameters = state.held_shares, state.sum_parameters
    near = [j for j in request.survivors if j in held]
    orphans = set(request.orphans)
    noise = parameters.noise_share_at(len(state.contributors), len(request.dropped))
    return UnmaskReply(
        state.member,
        request.sid,
        {j: held[j][:SHARE_BYTES] for j in near},
        {j: held[j][SHARE_BYTES : 2 * SHARE_BYTES] for j in request.dropped if j in held.keys() - orphans},
        {j: held[j][noise : noise + SHARE_BYTES] for j in near} if noise else {},
        {j: state.pair_keys[j] for j in request.orphans if j in state.pair_keys},
        parameters.suite,
    )


def pair_keys(state: ClientState, context: bytes) -> dict[int, bytes]:
    """Return, for each partner, the key of the mask that this client shares with that partner."""
    private_key, keys = PrivateKey(state.mask_private_key), dict[int, bytes]()
    if state.sum_parameters.noise_levels:
        context = context_of(context, state.contributors)
    for other in sorted(state.partners()):
        peer_key, ends = PublicKeys.from_bytes(state.members[other]).mask_key, (state.member, other)
        with _blaming(Stage.MASK, other):
            keys[other] = pair_mask_key(
                state.sum_parameters.suite, state.sid, private_key, peer_key, ends, context
            )
    return keys


def signed_masks(state: ClientState) -> Iterator[tuple[bytes, int]]:
    """Yield key and sign (1 or -1) of every mask of this client's vector."""
    yield self_mask_key(state.sum_parameters.suite, state.sid, state.self_seed, state.member), 1
    for other, key in state.pair_keys.items():
        yield key, 1 if state.member < other else -1


def _commitments(sid: bytes, ends: tuple[int, int], shares: Sequence[bytes]) -> bytes:
    return b"".join(share_commitment(sid, ends, part, share) for part, share in enumerate(shares))


def _sealing(state: ClientState, private_key: PrivateKey, other: int, ends: tuple[int, int]) -> Sealing:
    if other not in state.seal_secrets:
        peer_key = PublicKeys.from_bytes(state.members[other]).seal_key
        state.seal_secrets[other] = private_key.agree(peer_key)
    return Sealing(state.sum_parameters.suite, state.sid, state.seal_secrets[other], ends)


@contextmanager
def _blaming(stage: Stage, member: int) -> Iterator[None]:
    """Turn a failed key agreement into an error that names the other member as its cause."""
    try:
        yield
    except ValueError as error:
        raise RemoteProtocolError(stage, member, "its public key agrees on no secret", Cause.KEYS) from error


NOISE_DOUBT_BITS = 40
"""Noise that the caller gives is refused if correct noise is as small with probability at most 2**-40."""

Steps = NDArray[np.int64]
Noise = Steps | Literal["discrete_gaussian"] | None


def masked_vector(state: ClientState, steps: Steps | HeldVector, noise: Noise) -> memoryview:
    """Return this client's update with its noise and all its masks, as packed integers.

    The arguments are those of `ClientSession.mask`; the state has the keys of the pairwise masks. Raises
    LocalProtocolError for another dtype or shape, and for missing, wrong or unwanted noise.
    """
    parameters, masks = state.sum_parameters, signed_masks(state)
    suite, bits = parameters.suite, parameters.modulus_bits
    if isinstance(steps, np.ndarray):
        vector = state.encoding().to_residues(noisy_steps(state, steps, noise))
        add_masks(vector, masks, suite)
        return pack(vector, bits)
    dimension, own = parameters.dimension, steps.noise_squared_norm
    if steps.dimension != dimension:
        raise LocalProtocolError(f"a vector of {steps.dimension} steps is held: give one of {dimension}")
    if isinstance(noise, np.ndarray) or (noise is not None and own is not None):
        raise LocalProtocolError("a vector that is held elsewhere has its noise in it: give none beside it")
    _check_given(state, noise is not None or own is not None)
    if own is not None:
        _check_noise_norm(state, own)
    parts = () if noise is None else tuple(noise_parts(state))
    packed = steps.masked(parts, tuple(masks), suite, bits)
    if len(packed) != packed_bytes(parameters.dimension, bits):
        raise LocalProtocolError(
            f"the device returned {len(packed)} bytes for a vector of {parameters.dimension} "
            "residues, which need another number"
        )
    return packed


def noisy_steps(state: ClientState, steps: Steps, noise: Noise) -> Steps:
    """Return the update with this client's noise added, after checking both: int64[d].

    Raises LocalProtocolError for another dtype or shape, and for missing, wrong or unwanted noise.
    """
    _check_vector(state, "steps", steps)
    _check_given(state, noise is not None)
    if state.corrects:
        return steps
    if noise is None or isinstance(noise, str):
        return add_drawn_noise(state, steps)
    _check_vector(state, "noise", noise)
    _check_noise(state, noise)
    return steps + noise


def add_drawn_noise(state: ClientState, steps: Steps) -> Steps:
    """Return the steps plus all parts of this client's noise, each drawn from its own seed: int64[d]."""
    total = steps
    for stddev, factor, key in noise_parts(state):
        drawn = sample(len(total), stddev, key)
        if factor != 1:
            drawn *= factor
        drawn += total
        total = drawn
    return total


def noise_parts(state: ClientState) -> Iterator[NoisePart]:
    """Yield the parts of noise that this client draws from its own seeds; none for a sum without noise."""
    parameters, levels = state.sum_parameters, state.encoding().levels
    if levels is None:
        return
    seeds = [state.base_noise_seed, *noise_seeds(state.noise_seed, parameters.noise_levels)]
    for part in (0, *levels.parts_above(0)):
        yield NoisePart(*levels.law(part), noise_key(state.sid, seeds[part], state.member))


def _check_given(state: ClientState, given: bool) -> None:
    multiplier = state.sum_parameters.noise_multiplier
    if state.corrects and given:
        raise LocalProtocolError("a member without an update adds no noise: give what it takes back")
    if multiplier and not (given or state.corrects):
        raise LocalProtocolError(
            f"the sum has noise of multiplier {multiplier:g}, and none is given: "
            'give noise=..., or noise="discrete_gaussian" for noise of the session\'s own'
        )


def _check_vector(state: ClientState, name: str, vector: Steps) -> None:
    dimension = state.sum_parameters.dimension
    if vector.dtype != np.int64 or vector.shape != (dimension,):
        raise LocalProtocolError(f"{name} are {vector.dtype}{list(vector.shape)}: give int64[{dimension}]")


def _check_noise(state: ClientState, noise: Steps) -> None:
    _check_noise_norm(state, float(np.dot(noise, noise)))


def _check_noise_norm(state: ClientState, squared_norm: float) -> None:
    """Raise LocalProtocolError if the norm of the given noise is too small to come from correct sampling.

    |z|**2 >= s**2 (d - 2 sqrt(d x)), except with probability exp(-x) (Laurent and Massart, 2000, lemma 1).
    """
    dimension = state.sum_parameters.dimension
    if state.sum_parameters.noise_multiplier == 0 or state.sum_parameters.noise_levels:
        raise LocalProtocolError(
            "noise was given for a sum without noise, or with noise levels: give none, the session "
            "draws the noise itself"
        )
    stddev = state.encoding().integer_noise_stddev
    least = dimension - 2 * math.sqrt(dimension * NOISE_DOUBT_BITS * math.log(2))
    given = squared_norm / stddev**2
    if not given >= least:
        found = math.sqrt(max(given, 0.0) / dimension) * stddev
        raise LocalProtocolError(
            f"the noise has a standard deviation of {found:.4g} steps where {stddev:.4g} belong: give "
            "`client_noise_stddev`, or none and the session draws it"
        )
