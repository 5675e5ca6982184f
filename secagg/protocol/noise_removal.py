"""The survivors' noise beyond the plan's, taken out of the sum as the integers it was added as."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hmac import compare_digest

import numpy as np
from numpy.typing import NDArray

from secagg.arithmetic.noise_levels import NoiseLevels
from secagg.crypto.keys import noise_commitment, noise_key, noise_seeds
from secagg.crypto.prg import NUM_THREADS
from secagg.crypto.recovery import ShareRecovery
from secagg.protocol.sum_messages import UnmaskReply
from secagg.protocol.unmasking import MaskedRound
from secagg.sum_errors import RemoteProtocolError, ThresholdNotMet

_Draw = tuple[int, bytes]


def remove_noise(
    total: NDArray[np.uint32],
    masked: MaskedRound,
    recovery: ShareRecovery,
    replies: dict[int, UnmaskReply],
) -> int:
    """Subtract, in place, the parts of the survivors' noise that so few dropped do not need.

    Args:
        total: uint32[d], the sum of the survivors' residues.
        masked: the sum it belongs to.
        recovery: recovers the noise seeds, and notes the shares that were wrong and done without.
        replies: holder -> the shares it revealed.

    A survivor whose noise seed does not come back keeps all its noise in the sum, which is then more than
    the plan's; recovery notes whose fault it is.

    Returns:
        The level up to which the noise stays.
    """
    num_contributors = len(masked.survivors) + len(masked.lost)
    levels, level = masked.parameters.noise_level(num_contributors, len(masked.lost))
    if levels is None:
        return 0
    parts = list(levels.parts_above(level))
    draws: list[_Draw] = []
    for survivor in masked.survivors if parts else ():
        try:
            first = _recover_noise_seed(recovery, masked, replies, survivor, level)
        except (RemoteProtocolError, ThresholdNotMet):
            continue
        for part, seed in zip(parts, noise_seeds(first, len(parts)), strict=True):
            draws.append((part, noise_key(masked.sid, seed, survivor)))
    _subtract(total, levels, draws)
    return level


def _recover_noise_seed(
    recovery: ShareRecovery,
    masked: MaskedRound,
    replies: dict[int, UnmaskReply],
    dealer: int,
    level: int,
) -> bytes:
    shares = {i: reply.noise_shares[dealer] for i, reply in replies.items() if dealer in reply.noise_shares}
    committed = masked.dealt[dealer].noise_commitment
    left = masked.parameters.noise_levels - level
    return recovery.secret(
        dealer,
        shares,
        masked.graph.holders(dealer),
        lambda seed: compare_digest(noise_commitment(seed, left), committed),
        partial(masked.is_committed, dealer, 2 + level),
    )


def _subtract(total: NDArray[np.uint32], levels: NoiseLevels, draws: Sequence[_Draw]) -> None:
    """Each thread adds up its share of the draws; the caller's vector is touched by one only."""
    dimension = len(total)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        shares = (draws[start::NUM_THREADS] for start in range(NUM_THREADS))
        for excess in pool.map(lambda share: _sum_of(levels, dimension, share), shares):
            total -= excess


def _sum_of(levels: NoiseLevels, dimension: int, draws: Sequence[_Draw]) -> NDArray[np.uint32]:
    excess = np.zeros(dimension, dtype=np.uint32)
    for part, key in draws:
        excess += levels.draw(part, dimension, key).astype(np.uint32)
    return excess
