"""Tests of picture features whose linear map is fitted to random pictures, in place of a user's data."""

import numpy as np
import pytest
from scipy import linalg

from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data import random_prior as prior
from gdpfed.learning.data.own import own_split
from gdpfed.learning.data.random_prior import random_pictures
from gdpfed.learning.data.scattering import scattering
from gdpfed.learning.task import Task

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module", autouse=True)
def few_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior, "NUM_PICTURES", 800)
        prior._learned.cache_clear()
        yield
    prior._learned.cache_clear()


def test_random_pictures_are_the_same_every_time_and_no_two_alike():
    pictures = random_pictures(2000, SHAPE)
    assert (pictures.shape, pictures.dtype) == ((2000, *SHAPE), np.dtype(np.float32))
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


def test_views_are_moved_and_mirrored_windows_of_one_picture(monkeypatch):
    monkeypatch.setattr(prior, "NUM_PICTURES", 40)
    wide = random_pictures(40, (3, 12, 10))
    for view in prior.views((3, 8, 6)):
        places = [
            (down, right, mirrored)
            for picture, shown in zip(wide, view, strict=True)
            for down in range(5)
            for right in range(5)
            for mirrored in (1, -1)
            if np.array_equal(picture[:, down : down + 8, right : right + 6][..., ::mirrored], shown)
        ]
        assert len(places) == 40
        assert all({place[which] for place in places} == set(range(5)) for which in (0, 1))
        assert {mirrored for *_, mirrored in places} == {1, -1}


def test_directions_tell_pictures_apart_as_well_as_any_256_can():
    views = [scattering(view).astype(np.float64) for view in prior.views(SHAPE)]
    both, change = np.concatenate(views), views[0] - views[1]
    total, within = np.cov(both.T), change.T @ change / (2 * len(change))
    within += prior.SHRINKAGE * np.diag(within).mean() * np.eye(len(within))
    mean, matrix = (each.astype(np.float64) for each in prior._learned(SHAPE))
    np.testing.assert_allclose(mean, both.mean(axis=0), atol=1e-6)
    assert np.linalg.norm((both - mean) @ matrix, axis=1).mean() == pytest.approx(
        prior.TYPICAL_NORM, rel=1e-3
    )
    # In a basis where W is the identity, the optimum are the largest eigenvalues of T.
    root = np.linalg.inv(np.linalg.cholesky(within))
    best = np.linalg.eigvalsh(root @ total @ root.T)[-prior.NUMBERS :]
    scale = np.trace(matrix.T @ within @ matrix) / prior.NUMBERS
    np.testing.assert_allclose(matrix.T @ within @ matrix / scale, np.eye(prior.NUMBERS), atol=1e-4)
    np.testing.assert_allclose(np.linalg.eigvalsh(matrix.T @ total @ matrix) / scale, best, rtol=1e-3)


def test_the_signs_of_eigenvectors_do_not_matter(monkeypatch):
    mean, matrix = prior._learned(SHAPE)
    decompose = linalg.eigh

    def mirrored(*matrices, **options):
        values, directions = decompose(*matrices, **options)
        return values, directions * np.where(np.arange(len(values)) % 3, 1, -1)

    monkeypatch.setattr(linalg, "eigh", mirrored)
    prior._learned.cache_clear()
    other_mean, other = prior._learned(SHAPE)
    prior._learned.cache_clear()
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
