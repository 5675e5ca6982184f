"""A few directions of a picture's scattering: those that best tell pictures of a random process apart.

Which numbers those are is learned, but from pictures of a random process in place of data, as in Tang et al.,
arXiv:2306.06076. There a network is trained by steps until two views of a picture come out alike and two
pictures do not. Here the map is linear in the scattering, so the optimum has a closed form.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.data.random_pictures import random_pictures
from gdpfed.learning.data.scattering import scattering

linalg = late_import("scipy.linalg")

NUM_PICTURES = 4000
NUMBERS = 256
LARGEST_SHIFT = 2
SHRINKAGE = 0.01
TYPICAL_NORM = 4.0

Floats = npt.NDArray[np.float32]


def random_prior(pictures: Floats) -> Floats:
    """256 numbers a picture: the directions of its scattering in which random pictures differ most from
    one another, for how much two views of one of them differ.

    A view of a random picture is moved by up to 2 pixels each way, and mirrored left to right or not. With T
    the covariance of the scattering s of views, m their mean, and W half that of the difference between two
    views of a picture, the columns of V solve T v = l (W + 0.01 mean(diag W) I) v for the 256 largest l, and
    a picture becomes c R V' (s - m): R is a fixed rotation, and c makes 4 of the mean norm of views.

    Args:
        pictures: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 256), float32.
    """
    mean, matrix = _learned(pictures.shape[1:])
    return np.asarray((scattering(pictures) - mean) @ matrix, dtype=np.float32)


def views(shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """Two views of every random picture, each of shape (4000, *shape); the same in every process."""
    channels, height, width = shape
    margin = 2 * LARGEST_SHIFT
    pictures = random_pictures(NUM_PICTURES, (channels, height + margin, width + margin))
    generator = np.random.default_rng(1)
    return _view(pictures, generator), _view(pictures, generator)


def _view(pictures: Floats, generator: np.random.Generator) -> Floats:
    count, height, width = len(pictures), *(side - 2 * LARGEST_SHIFT for side in pictures.shape[2:])
    windows = np.lib.stride_tricks.sliding_window_view(pictures, (height, width), axis=(2, 3))
    down, right = generator.integers(0, 2 * LARGEST_SHIFT + 1, (2, count))
    moved = windows[np.arange(count), :, down, right]
    mirrored = generator.random((count, 1, 1, 1)) < 0.5
    return np.where(mirrored, moved[..., ::-1], moved)


@lru_cache(maxsize=2)
def _learned(shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """m of shape (D,) and c V R' of shape (D, 256), for pictures of a shape."""
    one, other = (scattering(view).astype(np.float64) for view in views(shape))
    both = np.concatenate([one, other])
    mean, total = both.mean(axis=0), np.cov(both.T)
    within = (one - other).T @ (one - other) / (2 * len(one))
    within += SHRINKAGE * np.diag(within).mean() * np.eye(len(within))
    size = len(mean)
    _, kept = linalg.eigh(total, within, subset_by_index=(size - NUMBERS, size - 1))
    # Eigenvectors have signs that differ from machine to machine. This rotation of them does not.
    left, _, right = np.linalg.svd(kept.T @ np.random.default_rng(0).standard_normal((size, NUMBERS)))
    matrix = kept @ (left @ right)
    matrix *= TYPICAL_NORM / np.linalg.norm((both - mean) @ matrix, axis=1).mean()
    return mean.astype(np.float32), matrix.astype(np.float32)
