"""Data sets, partitions and models: what comes out, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from gdpfed.learning.datasets import load_dataset
from gdpfed.learning.errors import LearningError
from gdpfed.learning.evaluate import evaluate
from gdpfed.learning.models import build_model, fingerprint, flatten, refuse_changing_buffers, state_dict_of
from gdpfed.learning.partition import iid_indices
from gdpfed.learning.task import Task, choose_device


def arrays(**changes):
    values = {
        "x_train": np.zeros((8, 3)),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0, 1]),
        "x_test": np.zeros((4, 3)),
        "y_test": np.array([0, 1, 2, 3]),
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def test_digits_are_split_once_and_for_all():
    data = load_dataset("digits", None)
    assert data.input_shape == (1, 8, 8)
    assert (len(data.train), len(data.test), data.num_classes) == (1437, 360, 10)
    assert data.train.x.min() == 0
    assert data.train.x.max() == 1
    trained_on = {row.tobytes() for row in data.train.x}
    assert sum(row.tobytes() in trained_on for row in data.test.x) == 0


def test_own_data_from_npz(tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays())
    data = load_dataset("npz", str(tmp_path / "mine.npz"))
    assert (data.input_shape, data.num_classes, data.train.x.dtype) == ((3,), 4, np.float32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, "lacks the arrays y_test"),
        ({"y_train": np.zeros(3, dtype=int)}, r"x_train has shape \(8, 3\) and y_train \(3,\)"),
        ({"y_train": np.full(8, 0.5)}, "y_train must hold class numbers"),
        ({"x_train": np.full((8, 3), np.nan)}, "x_train holds values that are not finite"),
        ({"x_test": np.zeros((4, 5))}, r"shape \(3,\) in x_train but \(5,\) in x_test"),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, dtype=int)}, "with N > 0"),
    ],
)
def test_npz_that_cannot_be_used_is_named(tmp_path, changes, words):
    np.savez(tmp_path / "mine.npz", **arrays(**changes))
    with pytest.raises(LearningError, match=words):
        load_dataset("npz", str(tmp_path / "mine.npz"))


def test_npz_that_is_no_npz(tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 but not really")
    with pytest.raises(LearningError, match="cannot be read as .npz"):
        load_dataset("npz", str(tmp_path / "mine.npz"))
    with pytest.raises(LearningError, match="dataset.path=None is no file"):
        load_dataset("npz", None)


def test_partition_shares_everything_out_once():
    parts = [iid_indices(1437, 360, k, seed=3) for k in range(360)]
    assert sorted(np.concatenate(parts)) == list(range(1437))
    assert {len(part) for part in parts} == {3, 4}
    assert not np.array_equal(parts[0], iid_indices(1437, 360, 0, seed=4))
    assert sum(len(iid_indices(5, 9, k, seed=0)) for k in range(9)) == 5
    with pytest.raises(LearningError, match="client 9 is none of the 9"):
        iid_indices(5, 9, 9, seed=0)


def test_model_depends_on_its_seed_alone():
    torch.manual_seed(1)
    first = flatten(build_model("mlp", (1, 8, 8), 10, seed=0))
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, flatten(build_model("mlp", (1, 8, 8), 10, seed=0)))
    assert fingerprint(first) != fingerprint(flatten(build_model("mlp", (1, 8, 8), 10, seed=1)))
    assert len(first) == 64 * 64 + 64 + 64 * 10 + 10


def test_state_dict_and_vector_are_the_same_numbers():
    model = build_model("mlp", (6,), 3, seed=0)
    theta = np.arange(64 * 6 + 64 + 64 * 3 + 3, dtype=np.float32)
    tensors = state_dict_of(model, theta)
    np.testing.assert_array_equal(np.concatenate([t.numpy().ravel() for t in tensors.values()]), theta)


def test_running_statistics_are_refused_and_restored():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(LearningError, match=r"1.running_mean.*GroupNorm"):
        refuse_changing_buffers(model, torch.randn(8, 6))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_buffers_that_stay_are_accepted():
    model = nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4))
    model.register_buffer("positions", torch.arange(6.0))
    refuse_changing_buffers(model, torch.randn(8, 6))


def test_evaluation_counts_and_averages():
    task = Task("digits", None, "linear", "iid", 10, seed=0)
    theta = np.zeros(650, dtype=np.float32)
    result = evaluate(task.build_model(), theta, task.load().test, device=torch.device("cpu"))
    assert result.loss == pytest.approx(np.log(10), rel=1e-6)
    assert result.accuracy == pytest.approx(np.mean(task.load().test.y == 0))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Task("svhn", None, "cnn3", "iid", 10, 0), "'svhn' has settings to plan with but no loader yet"),
        (Task("digits", None, "resnet18", "iid", 10, 0), "no model 'resnet18': choose one of linear, mlp"),
        (Task("digits", "x.npz", "linear", "iid", 10, 0), "digits comes with scikit-learn"),
    ],
)
def test_tasks_that_cannot_be_built(task, words):
    with pytest.raises(LearningError, match=words):
        task.build_model()


def test_natural_partition_needs_a_data_set_that_has_one():
    with pytest.raises(LearningError, match="dataset.partition=natural does not fit data set 'digits'"):
        Task("digits", None, "linear", "natural", 10, 0).client_data(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_cuda_that_is_not_there():
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(LearningError, match="run.device=cuda but no CUDA device"):
        choose_device("cuda")
