"""Scattering that is brought to few numbers of like size by what it is on pictures of a random process.

Whitening needs moments, which of the clients' pictures would be a statistic of their data. Those of random
pictures are public, and most of the structure of the scattering is that of the transform itself.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.learning.datasets.random_pictures import random_pictures
from gdpfed.learning.datasets.scattering import scattering

NUM_PICTURES = 2000
NUMBERS = 400
SHRINKAGE = 1.0
TYPICAL_NORM = 4.0

Floats = npt.NDArray[np.float32]


def random_prior(pictures: Floats) -> Floats:
    """400 numbers a picture: its scattering, whitened by 2,000 random pictures of the same shape.

    With mean m, covariance V diag(e) V' of the scattering of random pictures, and W the 400 columns of V with
    the largest e, a picture's scattering s becomes c R W' (s - m) with every direction divided by
    sqrt(e + mean e) before R, which is a fixed rotation; c makes 4 of the mean norm of random pictures.

    Args:
        pictures: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 400), float32.
    """
    mean, matrix = _whitening(pictures.shape[1:])
    return np.asarray((scattering(pictures) - mean) @ matrix, dtype=np.float32)


@lru_cache(maxsize=2)
def _whitening(shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """m of shape (D,) and the matrix of shape (D, 400), for pictures of a shape."""
    found = scattering(random_pictures(NUM_PICTURES, shape)).astype(np.float64)
    mean = found.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(found.T))
    variances = np.maximum(variances, 0)
    kept = directions[:, -NUMBERS:]
    scaled = kept / np.sqrt(variances[-NUMBERS:] + SHRINKAGE * variances.mean())
    # Eigenvectors have signs that differ from machine to machine. This rotation of them does not.
    drawn = np.random.default_rng(0).standard_normal((found.shape[1], NUMBERS))
    left, _, right = np.linalg.svd(kept.T @ drawn)
    matrix = scaled @ (left @ right)
    matrix *= TYPICAL_NORM / np.linalg.norm((found - mean) @ matrix, axis=1).mean()
    return mean.astype(np.float32), matrix.astype(np.float32)
