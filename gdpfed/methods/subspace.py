"""Projection on the principal subspace of a few long vectors."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

BLOCK = 2**20
SMALLEST_RELATIVE_VARIANCE = 1e-10


def project_on_principal_subspace(
    vector: npt.NDArray[np.float64], history: npt.NDArray[np.float32], rank: int
) -> npt.NDArray[np.float64]:
    """V V^T vector, V of shape (d, rank) being the first right singular vectors of ``history``.

    V is never formed: with the eigenvectors U and eigenvalues s^2 of the Gram matrix H H^T, of shape
    (h, h), V^T is U^T H / s. Directions in which the history holds next to nothing are left out, so the
    result lies in the span of the history whatever the rank.

    Args:
        vector: shape (d,).
        history: H, shape (h, d).
        rank: at most this many directions.

    Returns:
        A new vector of shape (d,).
    """
    gram = np.zeros((len(history), len(history)))
    products = np.zeros(len(history))
    for block in _blocks(len(vector)):
        rows = history[:, block].astype(np.float64)
        gram += rows @ rows.T
        products += rows @ vector[block]
    variances, directions = np.linalg.eigh(gram)
    kept = np.flatnonzero(variances > SMALLEST_RELATIVE_VARIANCE * variances[-1])[-rank:]
    basis = directions[:, kept]
    coefficients = basis @ ((basis.T @ products) / variances[kept])
    projected = np.empty(len(vector))
    for block in _blocks(len(vector)):
        projected[block] = coefficients @ history[:, block]
    return projected


def _blocks(length: int) -> Iterator[slice]:
    """Slices that cover ``length``, so that no copy in float64 is as long as the history."""
    return (slice(start, start + BLOCK) for start in range(0, length, BLOCK))
