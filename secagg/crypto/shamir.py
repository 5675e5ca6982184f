"""Shamir's secret sharing (CACM 1979) of byte strings, over GF(p) with p = 2**31 - 1.

A secret is cut into limbs of 30 bits; each limb is a field element and gets its own random polynomial of
degree t - 1. Holder number x (from 1) gets the values at x. Any t holders can recover the values at 0, and
t - 1 holders learn nothing. The field arithmetic is exact, in numpy.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PRIME = 2**31 - 1
# An 11-bit piece times a field element is below 2**42. A float64 adds 2**11 such products exactly
# (below 2**53), and numpy multiplies matrices of floats fast.
_PIECE_BITS = 11
_EXACT_TERMS = 2**11

Elements = NDArray[np.int64]


def matmul(left: Elements, right: Elements) -> Elements:
    """Multiply matrices modulo p, exactly: (a, b) x (b, c) -> (a, c), entries in [0, p)."""
    columns = right.shape[1]
    total = np.zeros((left.shape[0], columns), dtype=np.int64)
    piece_mask = 2**_PIECE_BITS - 1
    for start in range(0, left.shape[1], _EXACT_TERMS):
        block = right[start : start + _EXACT_TERMS]
        pieces = [block >> (_PIECE_BITS * i) & piece_mask for i in range(3)]
        product = left[:, start : start + _EXACT_TERMS].astype(np.float64) @ np.hstack(pieces).astype(
            np.float64
        )
        residues = product.astype(np.int64) % PRIME
        for i in range(3):
            total += residues[:, i * columns : (i + 1) * columns] << (_PIECE_BITS * i)
        total %= PRIME
    return total


def power_matrix(points: Elements, count: int) -> Elements:
    """Return x**e modulo p for each point x and e in 0..count - 1: int64[points, count]."""
    powers = np.ones((len(points), count), dtype=np.int64)
    for exponent in range(1, count):
        powers[:, exponent] = powers[:, exponent - 1] * points % PRIME
    return powers


def inverse_difference_products(points: Elements) -> Elements:
    """Compute 1 / prod_{j != i} (x_i - x_j) modulo p for each point x_i; points must differ."""
    differences = (points[:, None] - points[None, :]) % PRIME
    np.fill_diagonal(differences, 1)
    below = row_products(differences).tolist()
    return np.array([pow(value, -1, PRIME) for value in below], dtype=np.int64)


def row_products(matrix: Elements) -> Elements:
    """Multiply the entries of each row of a matrix modulo p."""
    while matrix.shape[1] > 1:
        half = matrix.shape[1] // 2
        product = matrix[:, :half] * matrix[:, half : 2 * half] % PRIME
        matrix = np.hstack([product, matrix[:, 2 * half :]])
    return matrix[:, 0]


_LIMB_BITS = 30


def num_limbs(num_bytes: int) -> int:
    """Return how many field elements a secret of this many bytes needs."""
    return -(-8 * num_bytes // _LIMB_BITS)


def share_bytes(num_bytes: int) -> int:
    """Return the length of one holder's share of a secret of this many bytes."""
    return 4 * num_limbs(num_bytes)


def split(
    secret: bytes, num_holders: int, threshold: int, random_bytes: Callable[[int], bytes]
) -> list[bytes]:
    """Split a secret so that any `threshold` of the holders can recover it.

    `secret`: the bytes to share. `num_holders`: how many shares to make; holder x in 1..num_holders gets
    entry x - 1. `threshold`: t, from 1 to num_holders. `random_bytes`: a cryptographic source, n -> n bytes.
    Returns one share of `share_bytes(len(secret))` bytes for each holder. Raises ValueError for an impossible
    threshold or number of holders.
    """
    if not 1 <= threshold <= num_holders < PRIME:
        raise ValueError(f"threshold {threshold} of {num_holders} holders: use 1 <= t <= holders")
    number, mask = int.from_bytes(secret, "little"), 2**_LIMB_BITS - 1
    limbs = np.array(
        [number >> (_LIMB_BITS * i) & mask for i in range(num_limbs(len(secret)))], dtype=np.int64
    )
    coefficients = np.empty((threshold, len(limbs)), dtype=np.int64)
    coefficients[0] = limbs
    coefficients[1:] = random_elements(coefficients[1:].size, random_bytes).reshape(-1, len(limbs))
    shares = matmul(_powers(num_holders, threshold), coefficients).astype("<u4")
    return [row.tobytes() for row in shares]


def recover(shares: dict[int, bytes], num_bytes: int) -> bytes | None:
    """Recover a secret of `num_bytes` bytes from {holder number: share}, using every given share.

    Give exactly t shares. Compare the result with a commitment, since a wrong share gives a wrong secret.
    Returns None if the result is not a byte string of that length, which proves that a share is wrong. Raises
    ValueError for no shares, or for a share of another length.
    """
    number = 0
    for i, limb in enumerate(interpolate(shares, 0, num_bytes).tolist()):
        if limb >> _LIMB_BITS:
            return None
        number |= limb << (_LIMB_BITS * i)
    return None if number >> (8 * num_bytes) else number.to_bytes(num_bytes, "little")


def interpolate(shares: dict[int, bytes], at: int, num_bytes: int) -> Elements:
    """Evaluate the polynomials through the shares at holder number `at`: int64[limbs]."""
    if not shares:
        raise ValueError("no shares to interpolate: give t of them")
    holders, rows = rows_of(shares, num_bytes)
    return matmul(_lagrange(holders, at).reshape(1, -1), rows).ravel()


def rows_of(shares: dict[int, bytes], num_bytes: int) -> tuple[tuple[int, ...], Elements]:
    """Return the holders' numbers, ascending, and their shares as rows: int64[holders, limbs]."""
    holders = tuple(sorted(shares))
    values = elements_of(b"".join(shares[holder] for holder in holders))
    return holders, values.reshape(len(holders), num_limbs(num_bytes))


def elements_of(share: bytes) -> Elements:
    """Read a share as field elements: int64, reduced modulo p."""
    return np.frombuffer(share, dtype="<u4").astype(np.int64) % PRIME


def random_elements(count: int, random_bytes: Callable[[int], bytes]) -> Elements:
    """Draw independent uniform field elements, by rejection of values outside the field: int64[count]."""
    kept = np.empty(0, dtype=np.int64)
    while len(kept) < count:
        missing = count - len(kept)
        words = np.frombuffer(random_bytes(4 * missing), dtype="<u4") & np.uint32(PRIME)
        kept = np.concatenate([kept, words[words != PRIME].astype(np.int64)])
    return kept


@lru_cache(maxsize=16)
def _powers(num_holders: int, threshold: int) -> Elements:
    """Return x**e modulo p for holders' numbers x in 1..num_holders and exponents e in 0..threshold-1."""
    powers = power_matrix(np.arange(1, num_holders + 1, dtype=np.int64), threshold)
    powers.flags.writeable = False
    return powers


@lru_cache(maxsize=256)
def _lagrange(holders: tuple[int, ...], at: int) -> Elements:
    """Return Lagrange weights w_i, with f(at) = sum_i w_i f(x_i) modulo p for polynomials f."""
    points = np.array(holders, dtype=np.int64)
    numerators = np.broadcast_to((at - points) % PRIME, (len(points), len(points))).copy()
    np.fill_diagonal(numerators, 1)
    weights = row_products(numerators) * inverse_difference_products(points) % PRIME
    weights.flags.writeable = False
    return weights
