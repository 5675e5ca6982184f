"""Computes 256 features of each picture, by a linear map that was fitted to synthetic pictures only.

Which numbers those are is learned, but from pictures of a random process in place of data, as in Tang et al.,
arXiv:2306.06076. There a network is trained by steps until two views of a picture come out alike and two
pictures do not. Here the map is linear in the scattering, so the optimum has a closed form.

The process is the dead leaves model (Lee, Mumford, Huang, "Occlusion Models for Natural Images", IJCV 2001),
which Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021, arXiv:2106.05963, use likewise.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import
from gdpfed.learning.data.scattering import scattering

linalg = late_import("scipy.linalg")

NUM_PICTURES = 4000
NUMBERS = 256
LARGEST_SHIFT = 2
SHRINKAGE = 0.01
TYPICAL_NORM = 4.0

Floats = npt.NDArray[np.float32]


def random_prior(pictures: Floats) -> Floats:
    """Map the wavelet scattering of each picture to 256 features, by a linear map fitted to random pictures.

    In these directions different random pictures differ most, relative to two views of the same picture.

    A view of a random picture is moved by up to 2 pixels each way, and mirrored left to right or not. With T
    the covariance of the scattering s of views, m their mean, and W half that of the difference between two
    views of a picture, the columns of V solve T v = l (W + 0.01 mean(diag W) I) v for the 256 largest l, and
    a picture becomes c R V' (s - m): R is a fixed rotation, and c makes 4 of the mean norm of views.

    `pictures`: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 256), float32.
    """
    mean, matrix = _learned(pictures.shape[1:])
    return np.asarray((scattering(pictures) - mean) @ matrix, dtype=np.float32)


def views(shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    """Draw two views (shifted, mirrored) of each of 4,000 synthetic random pictures, with a fixed seed."""
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
    """Fit the transform for one picture shape to random pictures: mean, shape (D,), and matrix (D, 256)."""
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


LEAVES = 60
SMALLEST_RADIUS = 2.0
EXPONENT = 1.5
CHUNK = 250


def random_pictures(count: int, shape: tuple[int, int, int]) -> Floats:
    """Draw random pictures of overlapping discs and boxes in many sizes, with a fixed seed.

    Radii have the density r^(-5/2) from 2 pixels to the edge of the picture; colours are more or less grey;
    the texture is noise with a power law for its spectrum; every second picture is slightly blurred.

    `shape`: channels, height and width of a picture.

    Returns:
        Shape (count, *shape), float32, in [-1, 1].
    """
    generator = np.random.default_rng(0)
    channels, height, width = shape
    chunks = [np.zeros((0, *shape), np.float32)]
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        pictures = np.zeros((size, *shape), dtype=np.float32)
        uncovered = np.ones((size, 1, height, width), dtype=bool)
        # Noise of mean 0 and deviation 1 with the spectrum f^-a, a in [0.5, 2].
        frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
        frequency[0, 0] = np.inf
        noise = np.fft.fft2(generator.standard_normal((size, height, width)))
        spectrum = frequency ** -generator.uniform(0.5, 2, (size, 1, 1))
        filtered = np.fft.ifft2(noise * spectrum).real
        filtered /= filtered.std(axis=(1, 2), keepdims=True)
        texture = filtered[:, None].astype(np.float32)
        # They are larger than all pictures of the chunk.
        del noise, spectrum, filtered

        for leaf in range(LEAVES):
            # From the nearest to the farthest, which fills what is left.
            inside = uncovered & _leaf(size, height, width, generator) if leaf < LEAVES - 1 else uncovered
            colour = generator.uniform(-1, 1, (size, channels, 1, 1)).astype(np.float32)
            grey = generator.uniform(0.3, 1, (size, 1, 1, 1)).astype(np.float32)
            colour = (1 - grey) * colour + 1.5 * grey * colour.mean(axis=1, keepdims=True)
            rough = generator.uniform(-0.3, 0.3, (size, 1, 1, 1)).astype(np.float32)
            pictures = np.where(inside, colour + rough * texture, pictures)
            uncovered &= ~inside
        right = np.roll(pictures, 1, axis=3)
        smooth = (pictures + right + np.roll(pictures, 1, axis=2) + np.roll(right, 1, axis=2)) / 4
        pictures[::2] = smooth[::2]
        chunks.append(np.clip(pictures, -1, 1))
    return np.concatenate(chunks)


def _leaf(count: int, height: int, width: int, generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    y, x = np.mgrid[:height, :width].astype(np.float32)
    low, high = SMALLEST_RADIUS**-EXPONENT, float(max(height, width)) ** -EXPONENT
    radius = (low + generator.random(count) * (high - low)) ** (-1 / EXPONENT)
    across = radius * generator.uniform(0.3, 1, count)
    angle = generator.uniform(0, np.pi, count)
    centre = generator.uniform(-4, (height + 4, width + 4), (count, 2))
    box = generator.random(count) < 0.5
    cosine, sine, radius, across, top, left, is_box = (
        np.asarray(each, dtype=np.float32).reshape(-1, 1, 1)
        for each in (np.cos(angle), np.sin(angle), radius, across, centre[:, 0], centre[:, 1], box)
    )
    down, right = y - top, x - left
    u, v = (cosine * right + sine * down) / radius, (cosine * down - sine * right) / across
    inside = np.where(is_box > 0, np.maximum(abs(u), abs(v)) < 0.8, u**2 + v**2 < 1)
    return np.asarray(inside)[:, None]
