"""Tests of named data sets and of tasks that use them: the resulting arrays, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from gdpfed.errors import LearningError
from gdpfed.learning.data import DATASETS, Dataset, DataSource, Split, load_dataset, register
from gdpfed.learning.data.arrays import read_npz
from gdpfed.learning.models import build_model, state_dict_of
from gdpfed.learning.task import Task, choose_device
from gdpfed.learning.training.evaluate import evaluate


def arrays(**changes):
    values = {
        "x_train": np.zeros((8, 3)),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0, 1]),
        "x_test": np.zeros((4, 3)),
        "y_test": np.array([0, 1, 2, 3]),
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def test_digits_are_split_once_and_for_all():
    data = load_dataset(DataSource("digits"))
    assert isinstance(data.train, Split)
    assert isinstance(data.test, Split)
    assert data.input_shape == (1, 8, 8)
    assert (len(data.train), len(data.test), data.num_classes) == (1437, 360, 10)
    assert data.train.x.min() == 0
    assert data.train.x.max() == 1
    trained_on = {row.tobytes() for row in data.train.x}
    assert sum(row.tobytes() in trained_on for row in data.test.x) == 0


def test_own_data_from_npz(tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays())
    data = load_dataset(DataSource("npz", str(tmp_path / "mine.npz")))
    assert isinstance(data.train, Split)
    assert (data.input_shape, data.num_classes, data.train.x.dtype) == ((3,), 4, np.dtype(np.float32))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, "lacks the arrays y_test"),
        ({"y_train": np.zeros(3, dtype=int)}, r"x_train has shape \(8, 3\) and y_train \(3,\)"),
        ({"y_train": np.zeros(8)}, "y_train must hold class numbers"),
        ({"y_train": np.full(8, 0.5)}, "type float32 in y_train but .* int64 in y_test"),
        ({"y_train": np.full(8, 1.5)}, "y_train holds numbers beyond -1 and 1"),
        ({"x_train": np.full((8, 3), np.nan)}, "x_train holds values that are not finite"),
        ({"x_train": np.full((8, 3), 1e300)}, "x_train holds values that are not finite as float32"),
        ({"x_train": np.full((8, 3), 1j)}, "x_train holds values of type complex128; it must hold real"),
        ({"x_test": np.full((4, 3), "1")}, "x_test holds values of type <U1; it must hold real numbers"),
        (
            {"y_train": np.arange(8) % 2 + 1, "y_test": np.arange(4) % 2 + 1},
            "2 classes, numbered from 1 to 2; .*0 to 1",
        ),
        (
            {"y_train": np.zeros(8, int), "y_test": np.zeros(4, int)},
            "with one class there is nothing to learn",
        ),
        ({"y_test": np.array([0, 1, 2, 10**9])}, "numbered from 0 to 1000000000; number them from 0 to"),
        ({"x_test": np.zeros((4, 5))}, r"shape \(3,\) in x_train but \(5,\) in x_test"),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, dtype=int)}, "with N > 0"),
    ],
)
def test_npz_that_cannot_be_used_is_named(tmp_path, changes, words):
    np.savez(tmp_path / "mine.npz", **arrays(**changes))
    with pytest.raises(LearningError, match=words):
        load_dataset(DataSource("npz", str(tmp_path / "mine.npz")))


def test_an_archive_is_measured_before_it_is_unpacked(tmp_path, monkeypatch):
    """A compressed archive is refused if its unpacked size exceeds the allowed memory."""
    monkeypatch.setattr("gdpfed.learning.data.unpacked.MOST_MEMORY", 0.0)
    np.savez_compressed(tmp_path / "own.npz", x_train=np.zeros((1000, 1000)))
    with pytest.raises(
        LearningError, match=r"holds 0.00745 GiB once it is unpacked, and 0 GiB of memory may"
    ):
        read_npz(tmp_path / "own.npz", ["x_train"], "own.npz")


def test_an_archive_that_is_packed_as_no_data_are_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpfed.learning.data.unpacked.ANY_SIZE", 2**20)
    np.savez_compressed(tmp_path / "zeros.npz", x_train=np.zeros((1000, 1000)))
    with pytest.raises(LearningError, match="and data are seldom packed to less than a 500th"):
        read_npz(tmp_path / "zeros.npz", ["x_train"], "zeros.npz")
    np.savez_compressed(tmp_path / "drawn.npz", x_train=np.random.default_rng(0).normal(size=(400, 1000)))
    assert read_npz(tmp_path / "drawn.npz", ["x_train"], "drawn.npz")["x_train"].shape == (400, 1000)


def test_npz_that_is_no_npz(tmp_path):
    np.save(tmp_path / "mine.npy", np.zeros(3))
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 but not really")
    for name in ("mine.npy", "mine.npz"):
        with pytest.raises(LearningError, match="cannot be read as .npz"):
            load_dataset(DataSource("npz", str(tmp_path / name)))
    with pytest.raises(LearningError, match="dataset.path is not set: name the .npz file"):
        load_dataset(DataSource("npz"))


def test_state_dict_and_vector_are_the_same_numbers():
    model = build_model("mlp", (6,), 3, seed=0)
    theta = np.arange(64 * 6 + 64 + 64 * 3 + 3, dtype=np.float32)
    tensors = state_dict_of(model, theta)
    np.testing.assert_array_equal(np.concatenate([t.numpy().ravel() for t in tensors.values()]), theta)


def test_evaluation_counts_and_averages():
    task = Task(DataSource("digits"), "linear", "iid", 10, seed=0)
    theta = np.zeros(650, dtype=np.float32)
    result = evaluate(task.build_model(), theta, task.load().test, device=torch.device("cpu"))
    assert result.loss == pytest.approx(np.log(10), rel=1e-6)
    assert result.accuracy == pytest.approx(np.mean(task.load().test.y == 0))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            Task(DataSource("svnh"), "cnn3", "iid", 10, 0),
            "data set 'svnh' is not known; did you mean svhn. Use breast_cancer, cifar10, csv, digits, ",
        ),
        (
            Task(DataSource("digits"), "resnet81", "iid", 10, 0),
            "model 'resnet81' is not known; did you mean resnet18. Use cnn2, ",
        ),
        (
            Task(DataSource("digits", "x"), "linear", "iid", 10, 0),
            "path=x has no meaning for data set 'digits'",
        ),
    ],
)
def test_tasks_that_cannot_be_built(task, words):
    with pytest.raises(LearningError, match=words):
        task.build_model()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_cuda_that_is_not_there():
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(LearningError, match="run.device=cuda but no CUDA device"):
        choose_device("cuda")


def test_a_loader_from_outside_is_a_data_set_like_any_other(monkeypatch):
    monkeypatch.setattr(DATASETS, "_items", dict(DATASETS._items))

    def load(source):
        source.allow()
        x, y = np.eye(6, dtype=np.float32), np.arange(6) % 2
        return Dataset(Split(x[:4], y[:4]), Split(x[4:], y[4:]), num_classes=2)

    register("six", load)
    task = Task(DataSource("six"), "linear", "iid", 2, seed=0)
    assert len(task.client_data(1)) == 2
    assert evaluate(
        task.build_model(), np.zeros(14, dtype=np.float32), task.load().test, device=torch.device("cpu")
    ).loss == pytest.approx(np.log(2), rel=1e-6)


X, Y = np.eye(6, dtype=np.float32), np.arange(6) % 2
LISTS: Any = X.tolist()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Dataset(Split(X, Y[:4]), Split(X, Y), 2), "train has 6 examples and 4 labels"),
        (Dataset(Split(X[:4], Y), Split(X, Y), 2), "train has 4 examples and 6 labels"),
        (Dataset(Split(X, Y), Split(X, Y[:5]), 2), "test has 6 examples and 5 labels"),
        (
            Dataset(Split(X * np.float32("nan"), Y), Split(X, Y), 2),
            "x of train holds values that are not finite",
        ),
        (Dataset(Split(X, Y + 1), Split(X, Y), 2), "label 1 of train is 2, and the labels are 2 classes"),
        (Dataset(Split(X, Y - 1), Split(X, Y), 2), "label 0 of train is -1, and the labels are 2 classes"),
        (Dataset(Split(X, Y.astype(float)), Split(X, Y), 2), "type float64, and .* type int64: convert"),
        (Dataset(Split(X, Y), Split(X[:, :2], Y), 2), r"train have shape \(6,\), and those of test \(2,\)"),
        (Dataset(Split(LISTS, Y), Split(X, Y), 2), "x of train is of type list: give an array"),
        ((X, Y, X, Y), "its loader returns a tuple: return a gdpfed.learning.data.Dataset"),
    ],
)
def test_a_data_set_of_a_loader_from_outside_is_checked(data, words, monkeypatch):
    monkeypatch.setattr(DATASETS, "_items", dict(DATASETS._items))
    register("foreign", lambda source: data)
    with pytest.raises(LearningError, match=f"^dataset=foreign: .*{words}"):
        load_dataset(DataSource("foreign"))
