"""Wavelet scattering of pictures in two layers, with mean colours: features that need no training.

Source: Bruna, Mallat, "Invariant Scattering Convolution Networks", TPAMI 2013, arXiv:1203.1513; filters as in
kymatio (Andreux et al., JMLR 2020): Morlet wavelets of two scales and eight orientations.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import

torch = late_import("torch")
functional = late_import("torch.nn.functional")

SCALES = 2
ORIENTATIONS = 8
PATHS = SCALES * ORIENTATIONS + ORIENTATIONS**2
CELLS = 4
PADDING = 4
SMALLEST_NORM = 0.02
CHUNK = 16
"""Pictures at a time: what a chunk needs stays in cache."""
LEAST_SIZE = 8


def scattering(pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute 1,280 numbers that describe a picture's shapes, and each channel's mean in 16 cells.

    With x the mean of the channels, mirrored at its borders, and psi_(j,k) the Morlet wavelet of scale 2^j
    and orientation k, there are 16 first layers u = |x * psi_(j,k)| and 64 second ones ||x * psi_(0,k)| *
    psi_(1,l)|. What has scale 1 is kept at every second pixel. Their means over 4x4 cells are taken, and the
    80 of a cell are divided by their norm + 0.02. The colours are the means of the channels over the cells.

    `pictures`: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 1280 + 16 channels), float32: the layers, the cells of each in rows; then the colours.
    """
    # Mirrored pixels are put at the borders, so that the sides are even.
    filters = _filters(*(side + side % 2 + 2 * PADDING for side in pictures.shape[2:]))
    nothing = np.zeros((0, CELLS**2 * (PATHS + pictures.shape[1])), dtype=np.float32)
    chunks = (pictures[start : start + CHUNK] for start in range(0, len(pictures), CHUNK))
    return np.concatenate([nothing, *(_scattering_of_chunk(chunk, filters) for chunk in chunks)])


def morlet(height: int, width: int, scale: int, orientation: int) -> npt.NDArray[np.float64]:
    """Return the Fourier transform of the Morlet wavelet psi of scale 2^j, orientation k, on a periodic grid.

    psi is a Gabor wavelet less that multiple of its envelope at which its sum is 0: width 0.8 2^j along the
    wave and twice that across it, frequency (3/4) pi / 2^j, angle (3 - k) pi / 8.
    """
    angle = (ORIENTATIONS // 2 - 1 - orientation) * math.pi / ORIENTATIONS
    deviation, slant = 0.8 * 2**scale, 4 / ORIENTATIONS
    envelope, wave = np.zeros((height, width)), np.zeros((height, width), dtype=np.complex128)
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = np.mgrid[:height, :width]
            y, x = y + down * height, x + right * width
            along = y * math.cos(angle) + x * math.sin(angle)
            across = x * math.cos(angle) - y * math.sin(angle)
            gaussian = np.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
            envelope += gaussian
            wave += gaussian * np.exp(0.75j * math.pi / 2**scale * along)
    centred = wave - wave.sum() / envelope.sum() * envelope
    return np.asarray(np.fft.fft2(centred).real * slant / (2 * math.pi * deviation**2))


@lru_cache(maxsize=4)
def _filters(height: int, width: int) -> npt.NDArray[np.float32]:
    banks = [[morlet(height, width, j, k) for k in range(ORIENTATIONS)] for j in range(SCALES)]
    return np.array(banks, dtype=np.float32)


def _scattering_of_chunk(
    pictures: npt.NDArray[np.float32], filters: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    x, (fine, coarse) = torch.from_numpy(pictures), torch.from_numpy(filters)
    height, width = x.shape[2:]
    sides = (PADDING, PADDING + width % 2, PADDING, PADDING + height % 2)
    padded = functional.pad(x.mean(dim=1, keepdim=True), sides, mode="reflect")
    transformed = torch.fft.fft2(padded)
    first = _modulus(transformed * fine)
    layers = [
        _cells(first, PADDING, height, width),
        _cells(_modulus(_halved(transformed * coarse)), PADDING // 2, (height + 1) // 2, (width + 1) // 2),
    ]
    second = _modulus(_halved((torch.fft.fft2(first)[:, :, None] * coarse).flatten(1, 2)))
    layers.append(_cells(second, PADDING // 2, (height + 1) // 2, (width + 1) // 2))
    shapes = torch.cat(layers, dim=1)
    shapes = shapes / (torch.linalg.vector_norm(shapes, dim=1, keepdim=True) + SMALLEST_NORM)
    colours = functional.adaptive_avg_pool2d(x, CELLS)
    return np.asarray(torch.cat([shapes, colours], dim=1).flatten(1).numpy(), dtype=np.float32)


def _modulus(transformed: Any) -> Any:
    """Return the modulus |u| of a filtered picture u, given its Fourier transform."""
    return torch.view_as_real(torch.fft.ifft2(transformed)).square().sum(dim=-1).sqrt()


def _halved(transformed: Any) -> Any:
    """Return the Fourier transform of a picture after dropping every second pixel in both directions."""
    height, width = transformed.shape[-2:]
    rows = transformed[..., : height // 2, :] + transformed[..., height // 2 :, :]
    return (rows[..., : width // 2] + rows[..., width // 2 :]) / 4


def _cells(layers: Any, padding: int, height: int, width: int) -> Any:
    inner = layers[..., padding : padding + height, padding : padding + width]
    return functional.adaptive_avg_pool2d(inner, CELLS)
