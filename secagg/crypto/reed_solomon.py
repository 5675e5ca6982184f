"""Finding the wrong shares of a secret: Shamir's shares as a Reed-Solomon code (McEliece and Sarwate, 1981).

The values of a polynomial of degree t - 1 at m points are a codeword; up to floor((m - t) / 2) of them may
be wrong, and no other polynomial fits as many of the rest. A share has several limbs, each a codeword of
its own over the same holders.

With u_i = 1 / prod_{j != i} (x_i - x_j), values y are a codeword exactly if their syndromes
S_e = sum_i u_i y_i x_i**e are 0 for e = 0 .. m - t - 1. Otherwise S_e is a sum of powers of the points
with wrong values, and the shortest linear recurrence of the syndromes has these points as roots.
"""

import numpy as np
from numpy.typing import NDArray

from secagg.crypto.prime_field import PRIME, Elements, inverse_difference_products, matmul, power_matrix
from secagg.crypto.shamir import rows_of


def wrong_shares(shares: dict[int, bytes], threshold: int, num_bytes: int) -> frozenset[int] | None:
    """The holders, by number, whose shares of one secret are wrong; None if too many are.

    Up to floor((m - t) / 2) of m shares are found, whatever their values and their limbs. The answer is
    checked: without these shares all others lie on polynomials of degree t - 1, and no other choice of as few
    or fewer leaves shares that do.

    Args:
        shares: holder number (from 1) -> share; at least t of them.
        threshold: t.
        num_bytes: the length of the secret.

    Raises:
        ValueError: fewer than t shares, or a share of another length.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of which {threshold} recover: give at least as many")
    holders, rows = rows_of(shares, num_bytes)
    points = np.array(holders, dtype=np.int64)
    most_wrong = (len(points) - threshold) // 2
    wrong = np.zeros(len(points), dtype=np.bool_)
    for of_limb in _syndromes(points, rows, threshold).T:
        if of_limb.any():
            found = _points_of(_recurrence(of_limb), points, most_wrong)
            if found is None:
                return None
            wrong |= found
    if wrong.sum() > most_wrong or _syndromes(points[~wrong], rows[~wrong], threshold).any():
        return None
    return frozenset(points[wrong].tolist())


def _syndromes(points: Elements, rows: Elements, threshold: int) -> Elements:
    """S_e of every limb, e = 0 .. m - t - 1: int64[m - t, limbs]."""
    powers = power_matrix(points, len(points) - threshold)
    checks = powers * inverse_difference_products(points)[:, None] % PRIME
    return matmul(checks.T, rows)


def _recurrence(syndromes: Elements) -> Elements:
    """The shortest c with c_0 = 1 and sum_i c_i S_{e-i} = 0 (Massey, 1969): its length is its degree + 1."""
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


def _points_of(recurrence: Elements, points: Elements, most: int) -> NDArray[np.bool_] | None:
    """Which points are roots of sum_i c_i x**(length - i); None unless `most` or fewer are all of them."""
    degree = len(recurrence) - 1
    if degree > most:
        return None
    values = np.zeros(len(points), dtype=np.int64)
    for coefficient in recurrence.tolist():
        values = (values * points + coefficient) % PRIME
    roots = values == 0
    return roots if roots.sum() == degree else None
