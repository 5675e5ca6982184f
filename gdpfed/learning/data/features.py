"""Fixed transforms of pictures to vectors of features, from which a small model learns more easily.

Nothing of a transform is fitted to any data: every picture is turned into numbers by itself, so they are a
part of the record and cost no budget. Nodes apply it to one record at a time (`own.one_by_one`), since the
last bits of a row in a batch may depend on the others.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, not_known
from gdpfed.late_import import late_import
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.encoded import FILE, Encoder
from gdpfed.learning.data.picture_transforms import NormalizedPictures
from gdpfed.learning.data.random_prior import random_prior
from gdpfed.learning.data.scattering import LEAST_SIZE as SCATTERING_SIZE
from gdpfed.learning.data.scattering import scattering

torch = late_import("torch")
functional = late_import("torch.nn.functional")

Transform = Callable[[Any], npt.NDArray[np.float32]]

NUM_FILTERS = 100
PATCH_SIZE = 6
QUADRANTS = 2
THRESHOLD = 0.5
LEAST_VARIANCE = 0.05
CHUNK = 256
CELLS = 4
BLOCK_CELLS = 2
ORIENTATIONS = 9
LARGEST_SHARE = 0.2
SMALLEST_NORM = 1e-5
HOG_SIZE = 8
"""Two pixels a cell."""


def _in_chunks(pictures: npt.NDArray[np.float32], numbers: int, of: Transform) -> npt.NDArray[np.float32]:
    """Apply a transform to pictures, chunk by chunk; return `numbers` features of each picture."""
    chunks = (pictures[start : start + CHUNK] for start in range(0, len(pictures), CHUNK))
    return np.concatenate([np.zeros((0, numbers), dtype=np.float32), *map(of, chunks)])


def hog(pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute 324 numbers that describe a picture's edges (HOG), and each channel's mean in 16 cells.

    A picture has 4x4 cells. In each, the lengths of the gradients (central differences, of the channel where
    they are longest; none at the border) are averaged by orientation, in 9 bins of 20 degrees without sign.
    Every 2x2 cells are a block of 36 such means, which is brought to norm 1, cut at 0.2 and brought to norm
    1 again. The colours are the means of the channels over the cells. Source: Dalal, Triggs, "Histograms of
    Oriented Gradients for Human Detection", CVPR 2005, in the form of scikit-image's `hog` with L2-Hys.

    `pictures`: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 324 + 16 channels), float32: the blocks in rows, their cells in rows, the orientations of a
        cell; then the colours.
    """
    blocks = (CELLS - BLOCK_CELLS + 1) ** 2 * BLOCK_CELLS**2 * ORIENTATIONS
    return _in_chunks(pictures, blocks + CELLS**2 * pictures.shape[1], _edges_and_colours)


def _edges_and_colours(pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    x = torch.from_numpy(pictures)
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    # In colours from 0 to 1, as the least norm takes them.
    down[:, :, 1:-1] = (x[:, :, 2:] - x[:, :, :-2]) / 2
    right[..., 1:-1] = (x[..., 2:] - x[..., :-2]) / 2
    longest = (down**2 + right**2).argmax(dim=1, keepdim=True)
    down, right = down.gather(1, longest)[:, 0], right.gather(1, longest)[:, 0]
    angles = torch.remainder(torch.atan2(down, right), math.pi) * (ORIENTATIONS / math.pi)
    bins = angles.long().clamp(max=ORIENTATIONS - 1)
    lengths = torch.zeros(len(x), ORIENTATIONS, *x.shape[2:])
    lengths.scatter_(1, bins[:, None], torch.hypot(down, right)[:, None])
    cells = functional.adaptive_avg_pool2d(lengths, CELLS)
    windows = cells.unfold(2, BLOCK_CELLS, 1).unfold(3, BLOCK_CELLS, 1).permute(0, 2, 3, 4, 5, 1)
    blocks = windows.flatten(3)
    for largest in (LARGEST_SHARE, 1.0):
        norms = torch.sqrt((blocks**2).sum(dim=-1, keepdim=True) + SMALLEST_NORM**2)
        blocks = (blocks / norms).clamp(max=largest)
    colours = functional.adaptive_avg_pool2d(x, CELLS).flatten(1)
    return np.asarray(torch.cat([blocks.flatten(1), colours], dim=1).numpy(), dtype=np.float32)


def random_convolutions(pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute 400 numbers for each picture: mean responses to 100 random patterns in each quadrant.

    At every place of a picture, a patch p of 6x6 pixels is compared with 100 patterns w, which are Gaussian
    from a fixed seed, of mean 0 and norm 1: max(0, <w, p> / sqrt(var(p) + 0.05) - 0.5), var over the patch
    and its channels. The mean of that over each quadrant is a feature (after Coates, Lee and Ng, 2011,
    without their whitening, which is fitted to data).

    `pictures`: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 400), float32.
    """
    patterns = _patterns(pictures.shape[1])
    return _in_chunks(pictures, NUM_FILTERS * QUADRANTS**2, lambda chunk: _mean_responses(chunk, patterns))


@lru_cache(maxsize=2)
def _patterns(channels: int) -> npt.NDArray[np.float32]:
    shape = (NUM_FILTERS, channels, PATCH_SIZE, PATCH_SIZE)
    drawn = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
    norms = np.sqrt((drawn**2).sum(axis=(1, 2, 3), keepdims=True))
    return np.asarray(drawn / norms)


def _mean_responses(
    pictures: npt.NDArray[np.float32], patterns: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    x, w = torch.from_numpy(pictures), torch.from_numpy(patterns)
    means, squares = (
        functional.avg_pool2d(each.mean(dim=1, keepdim=True), PATCH_SIZE, stride=1) for each in (x, x**2)
    )
    variances = (squares - means**2).clamp_min(0)
    found = functional.conv2d(x, w) / torch.sqrt(variances + LEAST_VARIANCE)
    pooled = functional.adaptive_avg_pool2d(torch.relu(found - THRESHOLD), QUADRANTS)
    return np.asarray(pooled.flatten(1).numpy(), dtype=np.float32)


FEATURES: dict[str, Transform] = {
    "hog": hog,
    "random_convolutions": random_convolutions,
    "random_prior": random_prior,
    "scattering": scattering,
}
LEAST_SIZES = {
    "hog": HOG_SIZE,
    "random_convolutions": PATCH_SIZE + QUADRANTS - 1,
    "random_prior": SCATTERING_SIZE,
    "scattering": SCATTERING_SIZE,
}
"""Height and width of a picture, in pixels."""


def with_features(data: Dataset, name: str, encoder: Encoder | None = None) -> Dataset:
    """Transform all examples of a data set to features, kept in memory as float32.

    Raises LearningError: no transform of that name, or examples that are not pictures or too small.
    """
    transform, shape = transform_of(name, encoder), data.input_shape
    if isinstance(data.train, NormalizedPictures):
        raise LearningError(
            f"dataset.features={name} takes pictures from -1 to 1: leave normalize out of pictures.yaml"
        )
    least = LEAST_SIZES.get(name, 0)
    if name != FILE and (len(shape) != 3 or min(shape[1:]) < least or data.input_dtype != np.float32):
        raise LearningError(
            f"dataset.features={name} takes pictures of {least}x{least} pixels or more, and the examples of "
            f"this data set have shape {shape}: leave it out"
        )
    made = []
    for examples in (data.train, data.test):
        everything = np.arange(len(examples))
        # A chunk at a time: as float32 all pictures take four times their bytes.
        chunks = (
            examples.take(everything[start : start + CHUNK]) for start in range(0, len(examples), CHUNK)
        )
        x = np.concatenate([transform(chunk.x) for chunk in chunks])
        groups = examples.groups if isinstance(examples, Split) else None
        made.append(Split(x, examples.y, groups))
    encoded = replace(
        data,
        features=name,
        picture_shape=shape,
        encoder=encoder,
        vocabulary=None,
        pixels=data.takes_pixels,
    )
    return replace(encoded, train=made[0], test=made[1])


def transform_of(name: str, encoder: Encoder | None = None) -> Transform:
    """Return the feature transform with this name; the name ``file`` means the given encoder.

    Raises LearningError: there is none.
    """
    if name == FILE:
        if encoder is None:
            raise LearningError("dataset.features=file needs dataset.weights: name a safetensors file")
        return encoder.of
    if encoder is not None:
        raise LearningError(f"dataset.encoder has no meaning for dataset.features={name}: leave it out")
    if name not in FEATURES:
        raise LearningError(not_known(f"dataset.features={name}", (*FEATURES, FILE)))
    return FEATURES[name]
