"""Tests of scattering features, against their definition and against kymatio's filters."""

import numpy as np
import pytest

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, DataSource, Pictures, load_dataset
from gdpfed.learning.data.features import with_features
from gdpfed.learning.data.scattering import morlet, scattering

# kymatio 0.3.0, filter_bank(40, 40, J=2, L=8): row 3, column 5 of psi at scale 0, then at scale 1.
KYMATIO = [
    *(0.37129, 0.347841, 0.197821, 0.071976, 0.01326, -0.017258, -0.041221, -0.045026),
    *(0.774834, 0.649885, 0.151438, 0.017008, 0.001241, -0.001362, -0.005831, -0.022341),
]
# The first cell of every eighth path of the picture below, from kymatio's filters.
CASCADE = [0.216892, 0.340158, 0.020752, 0.024366, 0.022369, 0.014361, 0.015278, 0.021355, 0.01837, 0.015136]


def waves():
    step = np.arange(32, dtype=np.float32)
    picture = [np.sin(step[:, None] * 0.7 + 0.3 * c) * np.cos(step * 0.4 * (c + 1)) for c in range(3)]
    return np.stack(picture).astype(np.float32)


def test_the_filters_are_kymatios():
    own = [morlet(40, 40, scale, orientation)[3, 5] for scale in range(2) for orientation in range(8)]
    np.testing.assert_allclose(own, KYMATIO, atol=4e-5)
    # A wavelet has no response to one colour.
    assert max(abs(morlet(40, 40, scale, 2)[0, 0]) for scale in range(2)) < 1e-12


def test_a_picture_becomes_what_kymatios_filters_make_of_it():
    (features,) = scattering(waves()[None])
    np.testing.assert_allclose(features[:1280:128], CASCADE, atol=3e-6)


def by_hand(picture):
    """Compute a picture's scattering features at full resolution, and take every second pixel afterwards."""
    _, height, width = map(int, picture.shape)
    x = np.pad(picture.mean(axis=0).astype(np.float64), 4, mode="reflect")
    filters = [[morlet(height + 8, width + 8, scale, k) for k in range(8)] for scale in range(2)]

    def modulus(signal, scale, k):
        return np.abs(np.fft.ifft2(np.fft.fft2(signal) * filters[scale][k]))

    def cells(layer, step):
        inner = layer[4 : 4 + height, 4 : 4 + width][::step, ::step]
        return inner.reshape(4, height // 4 // step, 4, width // 4 // step).mean(axis=(1, 3))

    first = [modulus(x, 0, k) for k in range(8)]
    coarse = [modulus(x, 1, k) for k in range(8)]
    coarse += [modulus(layer, 1, k) for layer in first for k in range(8)]
    found = np.array([cells(layer, 1) for layer in first] + [cells(layer, 2) for layer in coarse])
    return (found / (np.linalg.norm(found, axis=0) + 0.02)).reshape(-1)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 24, 32)])
def test_it_is_that_of_the_definition(shape):
    pictures = np.random.default_rng(1).uniform(-1, 1, (3, *shape)).astype(np.float32)
    features = scattering(pictures)
    assert (features.shape, features.dtype) == ((3, 1280 + 16 * shape[0]), np.dtype(np.float32))
    np.testing.assert_allclose(features[:, :1280], [by_hand(each) for each in pictures], atol=1e-5)
    colours = pictures.reshape(3, shape[0], 4, shape[1] // 4, 4, shape[2] // 4).mean(axis=(3, 5))
    np.testing.assert_allclose(features[:, 1280:], colours.reshape(3, -1), atol=1e-6)
    assert scattering(pictures[:0]).shape == (0, features.shape[1])


def test_sides_of_odd_length_are_taken_too():
    pictures = np.random.default_rng(2).uniform(-1, 1, (20, 1, 9, 13)).astype(np.float32)
    features = scattering(pictures)
    assert np.isfinite(features).all()
    np.testing.assert_allclose(features[17:18], scattering(pictures[17:18]), atol=1e-6)


def test_a_picture_of_one_colour_has_nothing_but_its_colour():
    (features,) = scattering(np.full((1, 3, 16, 16), 0.5, dtype=np.float32))
    np.testing.assert_allclose(features, [0] * 1280 + [0.5] * 48, atol=1e-4)


def test_a_data_set_goes_through_it():
    data = load_dataset(DataSource("digits", features="scattering"))
    assert (data.input_shape, data.picture_shape, data.features) == ((1296,), (1, 8, 8), "scattering")
    small = Pictures(np.zeros((4, 1, 7, 8), dtype=np.uint8), np.arange(4) % 2)
    with pytest.raises(LearningError, match="features=scattering takes pictures of 8x8 pixels or more"):
        with_features(Dataset(small, small, 2), "scattering")
