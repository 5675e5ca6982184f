"""Recovery of shared secrets from holders of whom some may have a wrong share."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from math import comb

import numpy as np

from secagg.errors import RemoteProtocolError, ThresholdNotMet
from secagg.keys import SECRET_BYTES
from secagg.shamir import elements_of, interpolate, recover
from secagg.stages import Stage

# Sets of t holders tried for one secret; about 2 s at t = 80, and only when shares are bad.
_MOST_ATTEMPTS = 4096


class ShareRecovery:
    """Recovers secrets from exactly `threshold` shares each, and remembers who misled it.

    A secret counts only if it fits its commitment. If the first set of holders fails, others are
    tried: all sets while they are few, otherwise a fixed pseudo-random sample, which finds one
    good set with near certainty while wrong shares are few beside the spare ones.

    Args:
        threshold: t.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._suspicion: Counter[int] = Counter()
        self.bad_shares: list[tuple[int, int]] = []
        """(dealer, holder) of shares found wrong; either of the two may be at fault."""

    def secret(
        self,
        dealer: int,
        shares: dict[int, bytes],
        numbers: dict[int, int],
        fits: Callable[[bytes], bool],
    ) -> bytes:
        """The secret of `dealer`, 32 bytes.

        Args:
            dealer: whose secret it is.
            shares: holder -> share.
            numbers: holder -> its Shamir number (from 1) with this dealer.
            fits: whether a candidate matches what the dealer committed to.

        Raises:
            ThresholdNotMet: fewer shares than the threshold.
            RemoteProtocolError: no set of holders that was tried recovers the secret.
        """
        if len(shares) < self._threshold:
            raise ThresholdNotMet(Stage.UNMASK, len(shares), self._threshold)
        trusted_first = sorted(shares, key=lambda holder: (self._suspicion[holder], holder))
        for attempt, holders in enumerate(_holder_sets(trusted_first, self._threshold)):
            used = {numbers[holder]: shares[holder] for holder in holders}
            secret = recover(used, SECRET_BYTES)
            if secret is not None and fits(secret):
                if attempt:
                    self._note_bad_shares(dealer, shares, numbers, used)
                return secret
        raise RemoteProtocolError(
            Stage.UNMASK, dealer, f"no {self._threshold} of {len(shares)} shares recover its secret"
        )

    def _note_bad_shares(
        self, dealer: int, shares: dict[int, bytes], numbers: dict[int, int], good: dict[int, bytes]
    ) -> None:
        for holder, share in shares.items():
            expected = interpolate(good, numbers[holder], SECRET_BYTES)
            if not np.array_equal(expected, elements_of(share)):
                self._suspicion[holder] += 1
                self.bad_shares.append((dealer, holder))


def _holder_sets(holders: list[int], threshold: int) -> Iterator[tuple[int, ...]]:
    """Sets of `threshold` holders, the first ones first."""
    if comb(len(holders), threshold) <= _MOST_ATTEMPTS:
        yield from combinations(holders, threshold)
        return
    yield tuple(holders[:threshold])
    # Any fixed sequence will do: it chooses among shares, not secrets.
    generator = np.random.default_rng(0)
    for _ in range(_MOST_ATTEMPTS):
        chosen = generator.choice(len(holders), threshold, replace=False)
        yield tuple(holders[i] for i in chosen)
