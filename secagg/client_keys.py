"""What a client computes with its secrets: public keys, sealed shares, mask keys."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secagg.client_state import ClientState
from secagg.errors import RemoteProtocolError
from secagg.keys import (
    NONCE_BYTES,
    PrivateKey,
    Sealing,
    commitment,
    pair_mask_key,
    self_mask_key,
)
from secagg.messages import SHARE_BYTES, PublicKeys
from secagg.shamir import split
from secagg.stages import Stage


def own_public_keys(state: ClientState) -> PublicKeys:
    """What this client publishes about its secrets."""
    return PublicKeys(
        PrivateKey(state.mask_private_key).public_bytes(),
        PrivateKey(state.seal_private_key).public_bytes(),
        commitment(state.self_seed),
    )


def seal_shares(state: ClientState, random_bytes: Callable[[int], bytes]) -> dict[int, bytes]:
    """Destination -> sealed shares of the own seed and masking key.

    Each is split over all members, whose rank by id is their Shamir number; the own share of the
    two is thrown away, so that only others can recover them.
    """
    holders, threshold = sorted(state.members), state.sum_parameters.threshold
    seeds = split(state.self_seed, len(holders), threshold, random_bytes)
    keys = split(state.mask_private_key, len(holders), threshold, random_bytes)
    private_key = PrivateKey(state.seal_private_key)
    sealed: dict[int, bytes] = {}
    for holder, seed, key in zip(holders, seeds, keys, strict=True):
        if holder != state.client_id:
            with _blaming(Stage.SHARE, holder):
                sealing = _sealing(state, private_key, holder, (state.client_id, holder))
            sealed[holder] = sealing.seal(seed + key, random_bytes(NONCE_BYTES))
    return sealed


def open_shares(state: ClientState, sealed: dict[int, bytes]) -> dict[int, bytes]:
    """Source -> share of its seed, then of its masking key.

    Raises:
        RemoteProtocolError: one does not open; the sender is the client it came from.
    """
    private_key = PrivateKey(state.seal_private_key)
    opened: dict[int, bytes] = {}
    for source, message in sealed.items():
        sealing = _sealing(state, private_key, source, (source, state.client_id))
        shares = sealing.open(message)
        if shares is None or len(shares) != 2 * SHARE_BYTES:
            raise RemoteProtocolError(
                Stage.MASK, source, "its sealed share does not open: altered, or for another sum"
            )
        opened[source] = shares
    return opened


def mask_keys(state: ClientState) -> Iterator[tuple[bytes, int]]:
    """Keys and signs of the masks of this client's vector."""
    suite, own = state.sum_parameters.suite, state.client_id
    yield self_mask_key(suite, state.sid, state.self_seed, own), 1
    private_key = PrivateKey(state.mask_private_key)
    for other in state.held_shares:
        peer_key = PublicKeys.from_bytes(state.members[other]).mask_key
        with _blaming(Stage.MASK, other):
            key = pair_mask_key(suite, state.sid, private_key, peer_key, (own, other))
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
