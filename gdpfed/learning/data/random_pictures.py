"""Pictures of a random process: nothing in them comes from data.

Source: the dead leaves model (Lee, Mumford, Huang, "Occlusion Models for Natural Images", IJCV 2001), which
Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021, arXiv:2106.05963, and Tang et al.,
arXiv:2306.06076, train features on.
"""

import numpy as np
import numpy.typing as npt

LEAVES = 60
SMALLEST_RADIUS = 2.0
EXPONENT = 1.5
CHUNK = 250

Floats = npt.NDArray[np.float32]


def random_pictures(count: int, shape: tuple[int, int, int]) -> Floats:
    """Leaves that cover one another: discs and boxes of all sizes, colours and textures, from a fixed seed.

    Radii have the density r^(-5/2) from 2 pixels to the edge of the picture; colours are more or less grey;
    the texture is noise with a power law for its spectrum; every second picture is slightly blurred.

    Args:
        shape: channels, height and width of a picture.

    Returns:
        Shape (count, *shape), float32, in [-1, 1].
    """
    generator = np.random.default_rng(0)
    sizes = [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
    return np.concatenate([np.zeros((0, *shape), np.float32), *(_chunk(n, shape, generator) for n in sizes)])


def _chunk(count: int, shape: tuple[int, int, int], generator: np.random.Generator) -> Floats:
    channels, height, width = shape
    pictures = np.zeros((count, *shape), dtype=np.float32)
    uncovered = np.ones((count, 1, height, width), dtype=bool)
    texture = _texture(count, height, width, generator)
    for leaf in range(LEAVES):
        # From the nearest to the farthest, which fills what is left.
        inside = uncovered & _leaf(count, height, width, generator) if leaf < LEAVES - 1 else uncovered
        colour = generator.uniform(-1, 1, (count, channels, 1, 1)).astype(np.float32)
        grey = generator.uniform(0.3, 1, (count, 1, 1, 1)).astype(np.float32)
        colour = (1 - grey) * colour + 1.5 * grey * colour.mean(axis=1, keepdims=True)
        rough = generator.uniform(-0.3, 0.3, (count, 1, 1, 1)).astype(np.float32)
        pictures = np.where(inside, colour + rough * texture, pictures)
        uncovered &= ~inside
    right = np.roll(pictures, 1, axis=3)
    smooth = (pictures + right + np.roll(pictures, 1, axis=2) + np.roll(right, 1, axis=2)) / 4
    pictures[::2] = smooth[::2]
    return np.clip(pictures, -1, 1)


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


def _texture(count: int, height: int, width: int, generator: np.random.Generator) -> Floats:
    """Noise of mean 0 and deviation 1 with the spectrum f^-a, a from 0.5 to 2; shape (count, 1, h, w)."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    frequency[0, 0] = np.inf
    noise = np.fft.fft2(generator.standard_normal((count, height, width)))
    spectrum = frequency ** -generator.uniform(0.5, 2, (count, 1, 1))
    texture = np.fft.ifft2(noise * spectrum).real
    texture /= texture.std(axis=(1, 2), keepdims=True)
    return texture[:, None].astype(np.float32)
