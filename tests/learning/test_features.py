"""Tests of the public transform of pictures to 400 features, against its formula patch by patch."""

import numpy as np
import pytest

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, DataSource, Pictures, Split, load_dataset
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.features import random_convolutions, with_features
from gdpfed.learning.data.own import own_split
from gdpfed.learning.task import Task


def by_hand(picture):
    """Compute the features of a picture of shape (channels, height, width), patch by patch."""
    channels, height, width = picture.shape
    patterns = np.random.default_rng(0).standard_normal((100, channels, 6, 6)).astype(np.float32)
    patterns = (patterns - patterns.mean(axis=(1, 2, 3), keepdims=True)).reshape(100, -1)
    patterns /= np.linalg.norm(patterns, axis=1, keepdims=True)
    found = np.empty((100, height - 5, width - 5))
    for row in range(height - 5):
        for column in range(width - 5):
            patch = picture[:, row : row + 6, column : column + 6].astype(np.float64).reshape(-1)
            found[:, row, column] = np.maximum(0, patterns @ patch / np.sqrt(patch.var() + 0.05) - 0.5)
    # Quadrants of a side of odd length share its middle.
    half = [(-(-side // 2), side // 2) for side in found.shape[1:]]
    (high, low), (left, right) = half
    quadrants = (
        found[:, rows, columns]
        for rows in (slice(0, high), slice(low, None))
        for columns in (slice(0, left), slice(right, None))
    )
    return np.stack([quadrant.mean(axis=(1, 2)) for quadrant in quadrants], axis=1).reshape(-1)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 13, 10)])
def test_features_are_those_of_the_formula(shape):
    pictures = np.random.default_rng(1).uniform(-1, 1, (3, *shape)).astype(np.float32)
    features = random_convolutions(pictures)
    assert (features.shape, features.dtype) == ((3, 400), np.dtype(np.float32))
    np.testing.assert_allclose(features, [by_hand(each) for each in pictures], atol=1e-5)
    assert random_convolutions(pictures[:0]).shape == (0, 400)


def test_a_picture_of_one_colour_is_nothing():
    assert not random_convolutions(np.full((2, 3, 9, 9), 0.7, dtype=np.float32)).any()


def test_a_picture_becomes_the_same_whatever_the_others_are():
    pixels = np.random.default_rng(2).integers(0, 256, (300, 1, 9, 9), dtype=np.uint8)
    whole = Pictures(pixels, np.arange(300) % 2)
    data = with_features(Dataset(whole, whole, 2), "random_convolutions")
    assert isinstance(data.train, Split)
    np.testing.assert_allclose(
        data.train.x[[7, 280]],
        random_convolutions(whole.take(np.array([7, 280])).x.astype(np.float32)),
        atol=1e-6,
    )
    assert data.train.y.tolist() == whole.y.tolist()


def test_the_digits_and_the_own_pictures_of_a_node_go_through_it(tmp_path):
    source = DataSource("digits", features="random_convolutions")
    task = Task(source, "linear", "iid", 10, seed=0).described()
    data, plain = load_dataset(source), load_dataset(DataSource("digits"))
    assert (data.input_shape, data.picture_shape, data.num_classes) == ((400,), (1, 8, 8), 10)
    assert sum(parameter.numel() for parameter in task.build_model().parameters()) == 4010
    assert Task.from_json(task.to_json()) == task
    part = plain.train.take(task.client_indices(3))
    np.savez(tmp_path / "own.npz", x_train=part.x, y_train=part.y)
    assert task.form is not None
    own = own_split(tmp_path / "own.npz", task.form)
    np.testing.assert_allclose(own.x, task.client_data(3).x, atol=1e-6)
    assert own.y.tolist() == task.client_data(3).y.tolist()
    np.savez(tmp_path / "own.npz", x_train=own.x, y_train=own.y)
    with pytest.raises(LearningError, match=r"x_train has shape .* takes \(N, 1, 8, 8\)"):
        own_split(tmp_path / "own.npz", ExampleForm.of(data))


def test_what_cannot_be_transformed_is_named():
    with pytest.raises(LearningError, match="features=wavelets is not known: use hog, random_convolutions"):
        load_dataset(DataSource("digits", features="wavelets"))
    with pytest.raises(LearningError, match=r"takes pictures of 7x7 pixels or more, .* shape \(30,\): leave"):
        load_dataset(DataSource("breast_cancer", features="random_convolutions"))


def test_a_small_model_learns_more_from_them_than_from_nothing():
    from sklearn.linear_model import LogisticRegression

    data = load_dataset(DataSource("digits", features="random_convolutions"))
    x, y = data.train.take(np.arange(600)).x, data.train.y[:600]
    held_out = data.test.take(np.arange(len(data.test)))
    # Guessing gets 36 of 360 right.
    assert LogisticRegression(max_iter=200).fit(10 * x, y).score(10 * held_out.x, held_out.y) > 0.9
