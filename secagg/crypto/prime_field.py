"""Exact arithmetic of matrices over the prime field GF(p), p = 2**31 - 1, in numpy."""

import numpy as np
from numpy.typing import NDArray

PRIME = 2**31 - 1
# A product of an 11-bit piece with a field element is below 2**42; 2**11 of them add up exactly
# in a float64 (below 2**53), and floats go through the fast matrix product.
_PIECE_BITS = 11
_EXACT_TERMS = 2**11

Elements = NDArray[np.int64]


def matmul(left: Elements, right: Elements) -> Elements:
    """left @ right modulo p, exact: (a, b) x (b, c) -> (a, c), entries in [0, p)."""
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
    """x**e modulo p for each point x and e in 0..count - 1: int64[points, count]."""
    powers = np.ones((len(points), count), dtype=np.int64)
    for exponent in range(1, count):
        powers[:, exponent] = powers[:, exponent - 1] * points % PRIME
    return powers


def inverse_difference_products(points: Elements) -> Elements:
    """1 / prod_{j != i} (x_i - x_j) modulo p, for each of the different points x_i."""
    differences = (points[:, None] - points[None, :]) % PRIME
    np.fill_diagonal(differences, 1)
    below = row_products(differences).tolist()
    return np.array([pow(value, -1, PRIME) for value in below], dtype=np.int64)


def row_products(matrix: Elements) -> Elements:
    """The product modulo p along each row, by halving: products of two stay below 2**62."""
    while matrix.shape[1] > 1:
        half = matrix.shape[1] // 2
        product = matrix[:, :half] * matrix[:, half : 2 * half] % PRIME
        matrix = np.hstack([product, matrix[:, 2 * half :]])
    return matrix[:, 0]
