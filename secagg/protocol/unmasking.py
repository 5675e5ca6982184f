"""The last step of a sum: recover the masks that did not cancel, and remove them.

The sum of the survivors' vectors still holds every survivor's own mask PRG(b_i), and the pair
masks with those who were lost (Bonawitz et al., CCS 2017, figure 4, round 4).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest

import numpy as np
from numpy.typing import NDArray

from secagg.crypto.keys import PrivateKey, commitment, pair_mask_key, self_mask_key, share_commitment
from secagg.crypto.prg import add_masks
from secagg.crypto.recovery import ShareRecovery
from secagg.protocol.graph import Graph
from secagg.protocol.parameters import SumParameters
from secagg.protocol.sum_messages import KEY_BYTES, PublicKeys, ShareReply, UnmaskReply
from secagg.protocol.transitions import Stage
from secagg.sum_errors import ThresholdNotMet


@dataclass(frozen=True)
class MaskedRound:
    """The server's knowledge of a sum when the masks are removed.

    Attributes:
        parameters: the sum's public numbers.
        sid: the session id, 32 bytes.
        members: id -> `PublicKeys.to_bytes` of all who advertised (U1).
        survivors: who is in the sum (U3).
        lost: who shared keys but is not in the sum (U2 less U3).
        graph: who is whose neighbour among the members.
        orphans: those of the lost whose keys do not come back; each survivor gives its mask with them.
        dealt: dealer -> the shares it dealt, with its commitments.
        context: names what the members' vectors were made from.
    """

    parameters: SumParameters
    sid: bytes
    members: dict[int, bytes]
    survivors: tuple[int, ...]
    lost: tuple[int, ...]
    graph: Graph
    orphans: tuple[int, ...]
    dealt: dict[int, ShareReply]
    context: bytes

    def keys_of(self, member: int) -> PublicKeys:
        return PublicKeys.from_bytes(self.members[member])

    def is_committed(self, dealer: int, part: int, holder: int, share: bytes) -> bool:
        """Whether a share is the one that the dealer committed to; see `share_commitment` for the part."""
        committed = self.dealt[dealer].commitments[holder][KEY_BYTES * part : KEY_BYTES * (part + 1)]
        return compare_digest(share_commitment(self.sid, (dealer, holder), part, share), committed)


def remove_masks(
    total: NDArray[np.uint32],
    masked: MaskedRound,
    recovery: ShareRecovery,
    replies: dict[int, UnmaskReply],
) -> None:
    """Turn the sum of masked vectors into the sum of the survivors' residues, in place.

    Args:
        total: uint32[d], the sum of the survivors' masked vectors.
        masked: the sum it belongs to.
        recovery: recovers the secrets, and notes the shares that were wrong and done without.
        replies: holder -> the shares it revealed.

    Raises:
        ThresholdNotMet: a secret has fewer shares than the threshold.
        RemoteProtocolError: no secret that fits its commitment comes out of the shares.
    """
    seeds = {j: _recover_seed(recovery, masked, replies, j) for j in masked.survivors}
    with_keys = [j for j in masked.lost if j not in masked.orphans]
    private_keys = {j: _recover_key(recovery, masked, replies, j) for j in with_keys}
    suite = masked.parameters.suite
    add_masks(total, _remaining_masks(masked, seeds, private_keys), suite)
    add_masks(total, _masks_with_orphans(masked, replies), suite)


def _masks_with_orphans(masked: MaskedRound, replies: dict[int, UnmaskReply]) -> Iterator[tuple[bytes, int]]:
    """Keys of the survivors' masks with orphans, with the sign that takes each out.

    Raises:
        ThresholdNotMet: a survivor that shares one has not answered.
    """
    for orphan in masked.orphans:
        near = masked.graph.neighbours(orphan) & set(masked.survivors)
        answered = near & replies.keys()
        if answered < near:
            raise ThresholdNotMet(Stage.UNMASK, len(answered), len(near))
        for survivor in near:
            yield replies[survivor].pair_keys[orphan], -1 if survivor < orphan else 1


def _recover_seed(
    recovery: ShareRecovery, masked: MaskedRound, replies: dict[int, UnmaskReply], dealer: int
) -> bytes:
    shares = {i: reply.seed_shares[dealer] for i, reply in replies.items() if dealer in reply.seed_shares}
    committed = masked.keys_of(dealer).seed_commitment
    return recovery.secret(
        dealer,
        shares,
        masked.graph.holders(dealer),
        lambda seed: compare_digest(commitment(seed), committed),
        partial(masked.is_committed, dealer, 0),
    )


def _recover_key(
    recovery: ShareRecovery, masked: MaskedRound, replies: dict[int, UnmaskReply], dealer: int
) -> bytes:
    shares = {i: reply.key_shares[dealer] for i, reply in replies.items() if dealer in reply.key_shares}
    published = masked.keys_of(dealer).mask_key
    return recovery.secret(
        dealer,
        shares,
        masked.graph.holders(dealer),
        lambda key: compare_digest(PrivateKey(key).public_bytes(), published),
        partial(masked.is_committed, dealer, 1),
    )


def _remaining_masks(
    masked: MaskedRound, seeds: dict[int, bytes], private_keys: dict[int, bytes]
) -> Iterator[tuple[bytes, int]]:
    """Keys of the masks still in the sum, with the sign that takes each out."""
    suite = masked.parameters.suite
    for survivor, seed in seeds.items():
        yield self_mask_key(suite, masked.sid, seed, survivor), -1
    peer_keys = {survivor: masked.keys_of(survivor).mask_key for survivor in masked.survivors}
    survivors = peer_keys.keys()
    for lost, private_bytes in private_keys.items():
        private_key = PrivateKey(private_bytes)
        for survivor in masked.graph.neighbours(lost) & survivors:
            ends, peer_key = (survivor, lost), peer_keys[survivor]
            key = pair_mask_key(suite, masked.sid, private_key, peer_key, ends, masked.context)
            yield key, -1 if survivor < lost else 1
