"""Tests of nodes that have examples in files of their own, and no part of the data set."""

import tracemalloc
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import LearningError, RunError
from gdpfed.federation.node.contribution import Contributor
from gdpfed.learning.data import DataSource
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.own import OwnData, check_own, own_split
from gdpfed.learning.data.own_files import READERS
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.record_steps import KINDS, RecordSteps
from secagg import Contributors, Encoding
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.small_runs import NUM_CLIENTS, final_model, run

PLAIN = ["method=fedavg", "run.num_rounds=2", "privacy.sampling_rate=1"]


def grid_with_files(folder, clients=range(NUM_CLIENTS)):
    """Return a grid of nodes that have their client's part of the data set in files of their own."""
    task = task_of(load([f"dataset.num_clients={NUM_CLIENTS}"]))
    grid = LocalGrid(NUM_CLIENTS)
    for client in clients:
        part = task.client_data(client)
        path = folder / f"{client}.npz"
        np.savez(path, x_train=part.x, y_train=part.y)
        grid.contexts[FIRST_NODE_ID + client].node_config["data"] = str(path)
    return grid


def test_the_same_examples_from_files_train_the_same_model(tmp_path):
    run(tmp_path / "shared", PLAIN)
    run(tmp_path / "own", PLAIN, grid=grid_with_files(tmp_path))
    np.testing.assert_array_equal(final_model(tmp_path / "shared"), final_model(tmp_path / "own"))


def test_other_examples_train_another_model(tmp_path):
    grid = grid_with_files(tmp_path)
    first = np.load(tmp_path / "0.npz")
    np.savez(tmp_path / "0.npz", x_train=first["x_train"], y_train=(first["y_train"] + 1) % 10)
    run(tmp_path / "shared", PLAIN)
    run(tmp_path / "own", PLAIN, grid=grid)
    assert not np.array_equal(final_model(tmp_path / "shared"), final_model(tmp_path / "own"))


def test_a_client_with_its_own_file_never_loads_the_data_set(tmp_path, monkeypatch):
    from gdpfed.clients.configured import order_of
    from gdpfed.federation.node.contribution import update_in_clear
    from secagg import SumParameters

    config = load([f"dataset.num_clients={NUM_CLIENTS}", "run.seed=9"])
    grid_with_files(tmp_path, [0])
    order = order_of(config, task_of(config))
    theta = flatten(order.task.build_model())
    order = type(order).from_scalars(order.to_scalars())
    monkeypatch.setattr(Task, "load", lambda self: pytest.fail("the data set was loaded"))
    parameters = SumParameters(
        label="own",
        num_clients=4,
        threshold=3,
        dropout_tolerance=0,
        dimension=len(theta),
        clipping_norm=1.0,
        noise_multiplier=0.0,
    )
    moved = replace(order, task=replace(order.task, seed=10))
    own = Contributor(0, "run", OwnData(tmp_path / "0.npz"))
    assert update_in_clear(moved, theta, parameters, own).any()


@pytest.mark.parametrize("text", [None, "no archive"])
def test_a_file_that_cannot_be_read_keeps_its_node_out_and_tells_nothing(tmp_path, text):
    grid = grid_with_files(tmp_path)
    (tmp_path / "3.npz").unlink()
    if text:
        (tmp_path / "3.npz").write_text(text)
    with pytest.raises(RunError, match="SuperNode 1003 does not join: data cannot be used, see the log of"):
        run(tmp_path / "run", PLAIN, grid=grid)
    assert not (tmp_path / "run").exists()


FORM = ExampleForm((2,), "float32", 3)
X, Y = np.zeros((4, 2)), np.arange(4) % 3


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_train": X}, "lacks the arrays y_train"),
        ({"x_train": X[:, :1], "y_train": Y}, r"x_train has shape \(4, 1\) .* takes \(N, 2\)"),
        ({"x_train": X, "y_train": Y[:3]}, r"y_train \(3,\)"),
        ({"x_train": X, "y_train": Y / 2}, "y_train is float64; it must hold class numbers"),
    ],
)
def test_examples_of_another_form_are_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(LearningError, match=words):
        own_split(tmp_path / "own.npz", FORM)


@pytest.mark.parametrize("where", ["x_train", "y_train"])
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])
def test_a_number_that_is_not_finite_is_the_operators_to_mend_and_a_blank_one_after_that(
    tmp_path, where, value
):
    """A check refuses values that are not finite before a node joins; later their examples become zero."""
    arrays: dict[str, Any] = {"x_train": X + 1.0, "y_train": np.array([0.5, 1.0, -1.0, 0.25])}
    arrays[where][2] = value
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(LearningError, match=f"{where} holds values that are not finite as float32"):
        check_own(OwnData(tmp_path / "own.npz"))
    split = own_split(tmp_path / "own.npz", ExampleForm((2,), "float32", 1))
    assert split.x.tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]
    assert split.y.tolist() == [0.5, 1.0, 0.0, 0.25]


@pytest.mark.parametrize(
    ("form", "x", "y", "blank"),
    [
        (FORM, X + 1, np.array([0, 3, 2, -1]), [False, True, False, True]),
        (ExampleForm((2,), "float32", 1), X + 1, np.array([0.5, 1.5, -1, 1]), [False, True, False, False]),
        (ExampleForm((2,), "int64", 5), np.array([[1, 4], [1, 5], [-1, 1], [0, 0]]), Y, [0, 1, 1, 0]),
    ],
)
def test_no_number_of_classes_asks_a_question_about_one_label(tmp_path, form, x, y, blank, caplog):
    """An example that does not fit the form of the server's data is set to zero, without an error."""
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y)
    split = own_split(tmp_path / "own.npz", form)
    kept = ~np.array(blank, dtype=bool)
    np.testing.assert_array_equal(split.x, x * kept[:, None])
    np.testing.assert_array_equal(split.y, y * kept)
    assert f"{(~kept).sum()} of 4 examples do not fit, and count as blank" in caplog.text


def test_no_label_decides_how_much_memory_examples_take_nor_how_they_lie_in_it(tmp_path):
    """Memory that is too small for a copy would answer, after the charge, whether an example is blank."""
    x, peaks, in_rows = np.asfortranarray(np.ones((50_000, 8), np.float32)), [], []
    form = ExampleForm((8,), "float32", 3)
    for label in (2, 3, 2, 3):
        np.savez(tmp_path / "own.npz", x_train=x, y_train=np.r_[np.zeros(len(x) - 1, np.int64), label])
        tracemalloc.start()
        split = own_split(tmp_path / "own.npz", form)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        in_rows.append(split.x.flags.c_contiguous)
        assert split.y[-1] == label % 3
    assert max(peaks[1:]) - min(peaks[1:]) < x.nbytes / 100
    assert all(in_rows)


RECORD_STEPS: dict[str, Any] = {"num_steps": 1, "batch_rates": (0.5, 0.5), "clipping_norm": 0.5}


@pytest.mark.parametrize("work", ["update", "noised_update", "gradient_sum", "dp_sgd"])
@pytest.mark.parametrize("damage", ["labels", "groups", "no file"])
def test_whatever_does_not_fit_is_answered_like_anything_else(tmp_path, work, damage):
    """A client whose examples are missing, or do not fit the task, sends a vector of the usual shape."""
    task = Task(DataSource("digits"), "linear", "iid", 40, seed=0, record_shares=(0.5, 0.5)).described()
    assert task.form is not None
    path, data = tmp_path / "own.csv", task.client_data(0)
    steps = RecordSteps(**RECORD_STEPS, noise_multiplier=0.8 if KINDS[work].own_noise else 0.0)
    groups = np.where(np.arange(len(data)) % 2, 7 if damage == "groups" else 1, 0)
    read = (data.x, data.y, groups)
    if damage == "labels":
        task = replace(task, form=replace(task.form, num_classes=5))
    if damage != "no file":
        path.touch()
    theta = flatten(task.build_model())
    order = TrainingOrder(task, LocalTraining(1, 4, 0.1, 0.0), 0, "cpu", work=work)
    order = replace(order, records=None if work == "update" else steps)
    encoding = Encoding.for_sum(
        Contributors(4), dimension=len(theta), clipping_norm=50.0, noise_multiplier=0.5
    )
    with patch.object(READERS, "get", lambda kind: lambda path: read):
        sent = Contributor(0, "run", OwnData(path)).steps(order, theta, encoding)
    assert sent.shape == theta.shape
    # Without a file it is zeros, under noise of its own where the work has some.
    assert sent.any() == (damage != "no file" or KINDS[work].own_noise)


def test_examples_are_taken_as_they_are(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=X + 0.5, y_train=Y.astype(np.uint8))
    split = own_split(tmp_path / "own.npz", FORM)
    assert (split.x.dtype, split.y.dtype, len(split)) == (np.dtype(np.float32), np.dtype(np.int64), 4)
    assert (split.x == 0.5).all()


def test_kinds_of_files_without_a_reader_are_named(tmp_path):
    (tmp_path / "own.txt").write_text("1,2")
    with pytest.raises(LearningError, match="kind of file 'txt' is not known: use csv, npz, parquet"):
        own_split(tmp_path / "own.txt", FORM)
