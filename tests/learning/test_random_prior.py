"""Features whitened by pictures of a random process: the pictures, the whitening, and data sets of them."""

import numpy as np
import pytest

from gdpfed.learning.datasets import DataSource, load_dataset
from gdpfed.learning.datasets import random_prior as prior
from gdpfed.learning.datasets.own import own_split
from gdpfed.learning.datasets.random_pictures import random_pictures
from gdpfed.learning.datasets.scattering import scattering
from gdpfed.learning.task import Task

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def pictures():
    return random_pictures(prior.NUM_PICTURES, SHAPE)


def test_random_pictures_are_the_same_every_time_and_no_two_alike(pictures):
    assert (pictures.shape, pictures.dtype) == ((prior.NUM_PICTURES, *SHAPE), np.dtype(np.float32))
    assert -1 <= pictures.min() < -0.9 < 0.9 < pictures.max() <= 1
    np.testing.assert_array_equal(pictures[:250], random_pictures(250, SHAPE))
    assert len(np.unique(pictures.reshape(len(pictures), -1), axis=0)) == len(pictures)
    assert random_pictures(3, (3, 12, 9)).shape == (3, 3, 12, 9)


def test_neighbours_are_alike_and_edges_are_sharp():
    found = random_pictures(250, (3, 32, 32))
    steps = np.abs(np.diff(found, axis=3))
    near = np.corrcoef(found[..., :-1].ravel(), found[..., 1:].ravel())[0, 1]
    far = np.corrcoef(found[..., :-16].ravel(), found[..., 16:].ravel())[0, 1]
    assert near > 0.8 > 0.4 > far
    assert (steps > 0.5).mean() > 0.02


def test_random_pictures_are_white_in_the_largest_directions(pictures):
    found = prior.random_prior(pictures)
    assert (found.shape, found.dtype) == ((prior.NUM_PICTURES, prior.NUMBERS), np.dtype(np.float32))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-3)
    assert np.linalg.norm(found, axis=1).mean() == pytest.approx(prior.TYPICAL_NORM, rel=1e-3)
    # The shrinkage leaves e / (e + mean e) of a direction's variance, in units of that of c.
    variances = np.linalg.eigvalsh(np.cov(scattering(pictures).astype(np.float64).T))
    left = variances / (variances + prior.SHRINKAGE * variances.mean())
    own = np.linalg.eigvalsh(np.cov(found.astype(np.float64).T))
    np.testing.assert_allclose(own / own.max(), left[-prior.NUMBERS :] / left.max(), atol=1e-3)


def test_the_signs_of_eigenvectors_do_not_matter(monkeypatch):
    mean, matrix = prior._whitening(SHAPE)
    decompose = np.linalg.eigh

    def mirrored(covariance):
        variances, directions = decompose(covariance)
        return variances, directions * np.where(np.arange(len(variances)) % 3, 1, -1)

    monkeypatch.setattr(np.linalg, "eigh", mirrored)
    prior._whitening.cache_clear()
    other_mean, other = prior._whitening(SHAPE)
    prior._whitening.cache_clear()
    np.testing.assert_allclose(other_mean, mean)
    np.testing.assert_allclose(other, matrix, atol=1e-4 * np.abs(matrix).max())


def test_digits_and_a_nodes_own_pictures_go_through_it(tmp_path):
    source = DataSource("digits", features="random_prior")
    task, data = Task(source, "linear", "iid", 10, seed=0).described(), load_dataset(source)
    assert (data.input_shape, data.picture_shape) == ((prior.NUMBERS,), SHAPE)
    part = load_dataset(DataSource("digits")).train.take(task.client_indices(3))
    np.savez(tmp_path / "own.npz", x_train=part.x, y_train=part.y)
    assert task.form is not None
    own = own_split(tmp_path / "own.npz", task.form)
    np.testing.assert_allclose(own.x, task.client_data(3).x, atol=1e-5)


def test_a_small_model_learns_from_them():
    from sklearn.linear_model import LogisticRegression

    data = load_dataset(DataSource("digits", features="random_prior"))
    train, test = (each.take(np.arange(360)) for each in (data.train, data.test))
    assert LogisticRegression(max_iter=200).fit(train.x, train.y).score(test.x, test.y) > 0.93
