"""Computations with a client's secrets: public keys, sealed shares, mask keys."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from secagg.client_state import ClientState
from secagg.errors import RemoteProtocolError
from secagg.keys import (
    NONCE_BYTES,
    PrivateKey,
    Sealing,
    commitment,
    noise_commitment,
    noise_key,
    noise_seeds,
    pair_mask_key,
    self_mask_key,
)
from secagg.messages import SHARE_BYTES, PublicKeys, UnmaskReply, UnmaskRequest, held_bytes
from secagg.shamir import split
from secagg.stages import Stage


def own_public_keys(state: ClientState) -> PublicKeys:
    """Return the keys that this client publishes."""
    return PublicKeys(
        PrivateKey(state.mask_private_key).public_bytes(),
        PrivateKey(state.seal_private_key).public_bytes(),
        commitment(state.self_seed),
    )


def seal_shares(state: ClientState, random_bytes: Callable[[int], bytes]) -> dict[int, bytes]:
    """Destination -> sealed shares of the own seed, masking key and noise seeds.

    Each is split over the neighbours by their Shamir number; the share under the own number is
    thrown away, so that only others can recover them.
    """
    holders, threshold = state.graph().holders(state.client_id), state.sum_parameters.threshold
    seeds = noise_seeds(state.noise_seed, state.sum_parameters.noise_levels)
    secrets = [state.self_seed, state.mask_private_key, *seeds]
    split_up = [split(secret, len(holders), threshold, random_bytes) for secret in secrets]
    private_key = PrivateKey(state.seal_private_key)
    sealed: dict[int, bytes] = {}
    for holder, number in holders.items():
        if holder != state.client_id:
            with _blaming(Stage.SHARE, holder):
                sealing = _sealing(state, private_key, holder, (state.client_id, holder))
            shares = b"".join(of_secret[number - 1] for of_secret in split_up)
            sealed[holder] = sealing.seal(shares, random_bytes(NONCE_BYTES))
    return sealed


def own_noise_commitment(state: ClientState) -> bytes:
    """Return the hash that recovered noise seeds are checked against; empty without noise levels."""
    levels = state.sum_parameters.noise_levels
    return noise_commitment(state.noise_seed, levels) if levels else b""


def draw_noise(state: ClientState) -> NDArray[np.int64]:
    """All parts of this client's noise, added up: int64[d]."""
    parameters, own = state.sum_parameters, state.client_id
    levels = parameters.encoding(len(state.contributors)).levels
    if levels is None:
        return np.zeros(parameters.dimension, dtype=np.int64)
    seeds = [state.base_noise_seed, *noise_seeds(state.noise_seed, parameters.noise_levels)]
    total = levels.draw(0, parameters.dimension, noise_key(state.sid, seeds[0], own))
    for part in levels.parts_above(0):
        total += levels.draw(part, parameters.dimension, noise_key(state.sid, seeds[part], own))
    return total


def open_shares(state: ClientState, sealed: dict[int, bytes]) -> dict[int, bytes]:
    """Source -> shares of its seed, its masking key, its noise seeds.

    Raises:
        RemoteProtocolError: one does not open; the sender is the client it came from.
    """
    private_key = PrivateKey(state.seal_private_key)
    opened: dict[int, bytes] = {}
    for source, message in sealed.items():
        sealing = _sealing(state, private_key, source, (source, state.client_id))
        shares = sealing.open(message)
        if shares is None or len(shares) != held_bytes(state.sum_parameters.noise_levels):
            raise RemoteProtocolError(
                Stage.MASK, source, "its sealed share does not open: altered, or for another sum"
            )
        opened[source] = shares
    return opened


def revealed_shares(state: ClientState, request: UnmaskRequest) -> UnmaskReply:
    """Return the shares that the (checked) request asks for, never of both secrets of one neighbour."""
    held, parameters = state.held_shares, state.sum_parameters
    near = [j for j in request.survivors if j in held]
    noise = parameters.noise_share_at(len(state.contributors), len(request.dropped))
    return UnmaskReply(
        state.client_id,
        request.sid,
        {j: held[j][:SHARE_BYTES] for j in near},
        {j: held[j][SHARE_BYTES : 2 * SHARE_BYTES] for j in request.dropped if j in held},
        {j: held[j][noise : noise + SHARE_BYTES] for j in near} if noise else {},
    )


def mask_keys(state: ClientState, context: bytes) -> Iterator[tuple[bytes, int]]:
    """Keys and signs of the masks of this client's vector, made in this context."""
    suite, own = state.sum_parameters.suite, state.client_id
    yield self_mask_key(suite, state.sid, state.self_seed, own), 1
    private_key = PrivateKey(state.mask_private_key)
    for other in state.held_shares:
        peer_key = PublicKeys.from_bytes(state.members[other]).mask_key
        with _blaming(Stage.MASK, other):
            key = pair_mask_key(suite, state.sid, private_key, peer_key, (own, other), context)
        yield key, 1 if own < other else -1


def _sealing(state: ClientState, private_key: PrivateKey, other: int, ends: tuple[int, int]) -> Sealing:
    peer_key = PublicKeys.from_bytes(state.members[other]).seal_key
    return Sealing(state.sum_parameters.suite, state.sid, private_key, peer_key, ends)


@contextmanager
def _blaming(stage: Stage, client_id: int) -> Iterator[None]:
    """Turn a failed key agreement into an error that names the peer."""
    try:
        yield
    except ValueError as error:
        raise RemoteProtocolError(stage, client_id, "its public key agrees on no secret") from error
