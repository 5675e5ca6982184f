"""Recovers a secret that a member split among holders, even if some holders send wrong shares.

Shamir's shares are a Reed-Solomon code (McEliece and Sarwate, 1981): the values of a polynomial of degree
t - 1 at m points are a codeword. If at most floor((m - t) / 2) values are wrong, only the right polynomial
fits all but so few of them. A share has several limbs, and each limb is a codeword over the same holders.

With u_i = 1 / prod_{j != i} (x_i - x_j), values y are a codeword if and only if their syndromes
S_e = sum_i u_i y_i x_i**e are 0 for e = 0 .. m - t - 1. Otherwise S_e is a weighted sum of powers of the
points with wrong values, and the shortest linear recurrence of the syndromes has these points as roots.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from secagg.crypto.keys import SECRET_BYTES
from secagg.crypto.shamir import (
    PRIME,
    Elements,
    inverse_difference_products,
    matmul,
    power_matrix,
    recover,
    rows_of,
)
from secagg.sum_errors import Cause, RemoteProtocolError, ThresholdNotMet


class ShareRecovery:
    """Recovers members' secrets, each from `threshold` Shamir shares, and remembers who sent wrong shares.

    A secret is accepted only if it fits its commitment. If the first t shares give no such secret, shares
    that do not fit the dealer's commitments are left out. The m others are decoded as a Reed-Solomon code,
    which finds up to floor((m - t) / 2) wrong ones. `threshold`: t. `blamed`: the set to which members at
    fault are added: the holder if a share does not fit the dealer's commitment to it, otherwise the dealer.
    """

    def __init__(self, threshold: int, blamed: set[int]) -> None:
        self._threshold = threshold
        self._suspicion: Counter[int] = Counter()
        self.bad_shares: list[tuple[int, int]] = []
        """(dealer, holder) of each wrong share."""
        self._blamed = blamed

    def secret(
        self,
        dealer: int,
        shares: dict[int, bytes],
        numbers: dict[int, int],
        fits: Callable[[bytes], bool],
        is_committed: Callable[[int, bytes], bool],
    ) -> bytes:
        """Recover a member's 32-byte secret from the shares that its holders send.

        Args:
            dealer: the member whose secret it is.
            shares: holder -> share.
            numbers: holder -> its Shamir number (from 1) for this dealer.
            fits: whether a candidate for the secret fits the dealer's commitment.
            is_committed: whether a holder's share fits the dealer's commitment to it.

        Raises:
            ThresholdNotMet: fewer shares than the threshold, not counting shares that holders changed.
            RemoteProtocolError: the shares to which the dealer committed do not recover its secret.
        """
        self._require(len(shares))
        trusted_first = sorted(shares, key=lambda holder: (self._suspicion[holder], holder))
        by_number = {numbers[holder]: shares[holder] for holder in trusted_first}
        secret = self._recovered(by_number, fits)
        if secret is not None:
            return secret
        lying = {holder for holder in shares if not is_committed(holder, shares[holder])}
        self._note(dealer, lying)
        self._blamed |= lying
        self._require(len(shares) - len(lying))
        by_number = {numbers[holder]: shares[holder] for holder in trusted_first if holder not in lying}
        wrong = wrong_shares(by_number, self._threshold, SECRET_BYTES)
        if wrong is not None:
            right = {number: share for number, share in by_number.items() if number not in wrong}
            secret = self._recovered(right, fits)
        if wrong or secret is None:
            self._blamed.add(dealer)
        if wrong is None or secret is None:
            reason = (
                f"{self._threshold} of the {len(by_number)} shares that it dealt do not recover its secret"
            )
            raise RemoteProtocolError("unmask", dealer, reason, Cause.SHARES)
        self._note(dealer, {holder for holder, number in numbers.items() if number in wrong})
        return secret

    def _require(self, num_shares: int) -> None:
        if num_shares < self._threshold:
            raise ThresholdNotMet("unmask", num_shares, self._threshold)

    def _recovered(self, by_number: dict[int, bytes], fits: Callable[[bytes], bool]) -> bytes | None:
        """Recover a secret from the fewest shares that suffice; return None if `fits` rejects it."""
        secret = recover(dict(list(by_number.items())[: self._threshold]), SECRET_BYTES)
        return secret if secret is not None and fits(secret) else None

    def _note(self, dealer: int, holders: set[int]) -> None:
        self._suspicion.update(holders)
        self.bad_shares += [(dealer, holder) for holder in sorted(holders)]


def wrong_shares(shares: dict[int, bytes], threshold: int, num_bytes: int) -> frozenset[int] | None:
    """Find the numbers of holders whose shares of a secret are wrong; return None for too many wrong shares.

    Up to floor((m - t) / 2) wrong shares among m are found. The answer is checked: all other shares lie on
    polynomials of degree t - 1, and no other choice of at most as many shares leaves such polynomials.
    `shares`: holder number (from 1) -> share; at least t of them. `threshold`: t. `num_bytes`: the length of
    the secret. Raises ValueError for fewer than t shares, or a share of another length.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares cannot recover a secret: give at least {threshold}")
    holders, rows = rows_of(shares, num_bytes)
    points = np.array(holders, dtype=np.int64)
    most_wrong = (len(points) - threshold) // 2
    wrong = np.zeros(len(points), dtype=np.bool_)
    for of_limb in _syndromes(points, rows, threshold).T:
        if of_limb.any():
            recurrence = _shortest_recurrence(of_limb)
            degree = len(recurrence) - 1
            if degree > most_wrong:
                return None
            values = np.zeros(len(points), dtype=np.int64)
            for coefficient in recurrence.tolist():
                values = (values * points + coefficient) % PRIME
            # The roots of the recurrence are the wrong shares' points, unless there are too few.
            roots = values == 0
            if roots.sum() != degree:
                return None
            wrong |= roots
    if wrong.sum() > most_wrong or _syndromes(points[~wrong], rows[~wrong], threshold).any():
        return None
    return frozenset(points[wrong].tolist())


def _syndromes(points: Elements, rows: Elements, threshold: int) -> Elements:
    """Compute the Reed-Solomon syndromes, int64[m - t, limbs], which are zero if no share is wrong."""
    powers = power_matrix(points, len(points) - threshold)
    checks = powers * inverse_difference_products(points)[:, None] % PRIME
    return matmul(checks.T, rows)


def _shortest_recurrence(syndromes: Elements) -> Elements:
    """Return the coefficients of the syndromes' shortest linear recurrence (Massey, 1969); c_0 = 1."""
    length, shift, before = 0, 1, 1
    current = np.zeros(len(syndromes) + 1, dtype=np.int64)
    current[0] = 1
    previous = current
    for step in range(len(syndromes)):
        window = syndromes[step - length : step + 1][::-1]
        discrepancy = int((current[: length + 1] * window % PRIME).sum()) % PRIME
        if discrepancy == 0:
            shift += 1
            continue
        factor = discrepancy * pow(before, -1, PRIME) % PRIME
        updated = current.copy()
        updated[shift:] = (updated[shift:] - factor * previous[:-shift]) % PRIME
        if 2 * length <= step:
            previous, before, length, shift = current, discrepancy, step + 1 - length, 1
        else:
            shift += 1
        current = updated
    return current[: length + 1]
