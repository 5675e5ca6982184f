"""Tests of histograms of oriented gradients (HOG), against their definition and scikit-image.

The same pictures give scikit-image's figures (0.26: hog(picture, orientations=9, pixels_per_cell=(8, 8),
cells_per_block=(2, 2), channel_axis=-1)), some of which stand below.
"""

import numpy as np
import pytest

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, DataSource, Pictures, load_dataset
from gdpfed.learning.data.features import hog, with_features

# Of every block, the first orientation of its first cell.
SCIKIT_IMAGE = [0.276959, 0.279236, 0.280603, 0.275282, 0.273898, 0.274108, 0.239597, 0.256065, 0.274584]


def histogram(picture, rows, columns):
    """Compute the mean gradient length by orientation in one cell, pixel by pixel."""
    _, height, width = picture.shape
    found = np.zeros(9)
    for row in rows:
        for column in columns:
            gradients = [
                (
                    colour[row + 1, column] - colour[row - 1, column] if 0 < row < height - 1 else 0.0,
                    colour[row, column + 1] - colour[row, column - 1] if 0 < column < width - 1 else 0.0,
                )
                for colour in picture
            ]
            down, right = max(gradients, key=lambda each: np.hypot(*each))
            degrees = np.rad2deg(np.arctan2(down, right)) % 180
            found[min(int(degrees // 20), 8)] += np.hypot(down, right)
    return found / (len(rows) * len(columns))


def by_hand(picture):
    channels, height, width = picture.shape
    x = (picture.astype(np.float64) + 1) / 2
    places = [
        [(range(i * height // 4, (i + 1) * height // 4), range(j * width // 4, (j + 1) * width // 4))]
        for i in range(4)
        for j in range(4)
    ]
    cells = np.array([histogram(x, *place) for (place,) in places]).reshape(4, 4, 9)
    blocks = []
    for i in range(3):
        for j in range(3):
            block = cells[i : i + 2, j : j + 2].reshape(-1)
            block = np.minimum(block / np.sqrt(block @ block + 1e-10), 0.2)
            blocks.append(block / np.sqrt(block @ block + 1e-10))
    colours = picture.reshape(channels, 4, height // 4, 4, width // 4).mean(axis=(2, 4))
    return np.concatenate([*blocks, colours.reshape(-1)])


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 12, 16)])
def test_it_is_that_of_the_definition(shape):
    pictures = np.random.default_rng(1).uniform(-1, 1, (3, *shape)).astype(np.float32)
    features = hog(pictures)
    assert (features.shape, features.dtype) == ((3, 324 + 16 * shape[0]), np.dtype(np.float32))
    np.testing.assert_allclose(features, [by_hand(each) for each in pictures], atol=1e-5)
    assert hog(pictures[:0]).shape == (0, features.shape[1])


def test_it_is_scikit_images():
    step = np.arange(32, dtype=np.float32)
    picture = np.stack(
        [np.sin(step[:, None] * 0.7 + 0.3 * c) * np.cos(step * 0.4 * (c + 1)) for c in range(3)]
    )
    (features,) = hog(picture[None].astype(np.float32))
    np.testing.assert_allclose(features[:324:36], SCIKIT_IMAGE, atol=2e-6)


def test_a_picture_of_one_colour_has_nothing_but_its_colour():
    (features,) = hog(np.full((1, 3, 32, 32), 0.5, dtype=np.float32))
    np.testing.assert_allclose(features, [0] * 324 + [0.5] * 48)


def test_a_data_set_goes_through_it():
    data = load_dataset(DataSource("digits", features="hog"))
    assert (data.input_shape, data.picture_shape, data.features) == ((340,), (1, 8, 8), "hog")
    small = Pictures(np.zeros((4, 1, 7, 7), dtype=np.uint8), np.arange(4) % 2)
    with pytest.raises(LearningError, match="features=hog takes pictures of 8x8 pixels or more"):
        with_features(Dataset(small, small, 2), "hog")
