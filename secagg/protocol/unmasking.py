"""The last step of a secure sum: the server removes masks that did not cancel, and surplus noise.

The sum of the survivors' vectors still contains each survivor's own mask PRG(b_i), and the masks that
survivors share with dropped members (Bonawitz et al., CCS 2017, figure 4, round 4). Noise is removed in
integers, exactly as it was added.
"""

from collections.abc import Callable, Iterator
from functools import partial
from hmac import compare_digest
from operator import attrgetter

import numpy as np

from secagg.crypto.keys import (
    PrivateKey,
    commitment,
    context_of,
    noise_commitment,
    noise_key,
    noise_seeds,
    pair_mask_key,
    self_mask_key,
)
from secagg.crypto.prg import add_masks
from secagg.crypto.recovery import ShareRecovery
from secagg.protocol.server_state import ServerState
from secagg.protocol.transitions import Stage
from secagg.sum_errors import RemoteProtocolError, ThresholdNotMet


def remove_masks(state: ServerState, recovery: ShareRecovery) -> None:
    """Turn the sum of masked vectors, `state.total`, in place into the sum of the survivors' vectors.

    Args:
        state: the state of a sum in its last stage, with all replies that arrived.
        recovery: recovers the secrets, and records wrong shares.

    Raises:
        ThresholdNotMet: there are fewer shares of a secret than the threshold, or a mask key is missing.
        RemoteProtocolError: the shares do not give a secret that fits its commitment.
    """
    seeds = {dealer: _recovered_seed(state, recovery, dealer) for dealer in state.survivors}
    with_keys = [dealer for dealer in state.lost if dealer not in state.orphans]
    private_keys = {dealer: _recovered_private_key(state, recovery, dealer) for dealer in with_keys}
    add_masks(state.total, _remaining_masks(state, seeds, private_keys), state.parameters.suite)
    add_masks(state.total, _masks_with_orphans(state), state.parameters.suite)


def remove_noise(state: ServerState, recovery: ShareRecovery) -> int:
    """Subtract surplus noise, which members added in case more members drop out than really did.

    If a survivor's noise seed cannot be recovered, all its noise stays, so the sum has more noise than
    planned; `recovery` records who is at fault. Returns the last level of noise that stays in the sum.
    """
    levels, level = state.parameters.noise_level(len(state.contributors), len(state.lost))
    if levels is None:
        return 0
    parts = list(levels.parts_above(level))
    for survivor in state.survivors if parts else ():
        try:
            first = _recovered_noise_seed(state, recovery, survivor, level)
        except (RemoteProtocolError, ThresholdNotMet):
            continue
        for part, seed in zip(parts, noise_seeds(first, len(parts)), strict=True):
            drawn = levels.draw(part, len(state.total), noise_key(state.sid, seed, survivor))
            state.total -= drawn.astype(np.uint32)
    return level


def _recovered_seed(state: ServerState, recovery: ShareRecovery, dealer: int) -> bytes:
    committed = state.keys_of(dealer).seed_commitment

    def fits(seed: bytes) -> bool:
        return compare_digest(commitment(seed), committed)

    return _recovered(state, recovery, dealer, 0, "seed_shares", fits)


def _recovered_private_key(state: ServerState, recovery: ShareRecovery, dealer: int) -> bytes:
    published = state.keys_of(dealer).mask_key

    def fits(key: bytes) -> bool:
        return compare_digest(PrivateKey(key).public_bytes(), published)

    return _recovered(state, recovery, dealer, 1, "key_shares", fits)


def _recovered_noise_seed(state: ServerState, recovery: ShareRecovery, dealer: int, level: int) -> bytes:
    committed, left = state.dealt[dealer].noise_commitment, state.parameters.noise_levels - level

    def fits(seed: bytes) -> bool:
        return compare_digest(noise_commitment(seed, left), committed)

    return _recovered(state, recovery, dealer, 2 + level, "noise_shares", fits)


def _recovered(
    state: ServerState,
    recovery: ShareRecovery,
    dealer: int,
    part: int,
    field: str,
    fits: Callable[[bytes], bool],
) -> bytes:
    """Recover one secret of member `dealer` from its shares, which are in `field` of the unmask replies."""
    given = attrgetter(field)
    shares = {
        holder: of_dealers[dealer]
        for holder, reply in state.unmask_replies.items()
        if dealer in (of_dealers := given(reply))
    }
    is_committed = partial(state.is_committed, dealer, part)
    return recovery.secret(dealer, shares, state.graph.holders(dealer), fits, is_committed)


def _remaining_masks(
    state: ServerState, seeds: dict[int, bytes], private_keys: dict[int, bytes]
) -> Iterator[tuple[bytes, int]]:
    """Yield the key of each mask that is still in the sum, with the sign that removes the mask."""
    suite, context = state.parameters.suite, state.context
    if state.parameters.noise_levels:
        context = context_of(context, state.contributors)
    for survivor, seed in seeds.items():
        yield self_mask_key(suite, state.sid, seed, survivor), -1
    peer_keys = {survivor: state.keys_of(survivor).mask_key for survivor in state.survivors}
    survivors = peer_keys.keys()
    for lost, private_bytes in private_keys.items():
        private_key = PrivateKey(private_bytes)
        for survivor in state.graph.neighbours(lost) & survivors:
            ends, peer_key = (survivor, lost), peer_keys[survivor]
            key = pair_mask_key(suite, state.sid, private_key, peer_key, ends, context)
            yield key, -1 if survivor < lost else 1


def _masks_with_orphans(state: ServerState) -> Iterator[tuple[bytes, int]]:
    """Yield the key of each mask between a survivor and an orphan (a lost member with too few known shares).

    With each key comes the sign that removes the mask. Raises ThresholdNotMet if a survivor that shares such
    a mask has not answered.
    """
    replies = state.unmask_replies
    for orphan in state.orphans:
        near = state.graph.neighbours(orphan) & set(state.survivors)
        answered = near & replies.keys()
        if answered < near:
            raise ThresholdNotMet(Stage.UNMASK, len(answered), len(near))
        for survivor in near:
            yield replies[survivor].pair_keys[orphan], -1 if survivor < orphan else 1
