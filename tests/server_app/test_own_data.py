"""Nodes that bring their own examples, and hold no part of the data set."""

import numpy as np
import pytest

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.errors import LearningError, RunError
from gdpfed.learning.datasets.own import ExampleForm, own_split
from testing.local_grid import FIRST_NODE_ID, LocalGrid
from testing.small_runs import NUM_CLIENTS, final_model, run

PLAIN = ["method=fedavg", "run.num_rounds=2", "privacy.sampling_rate=1"]


def grid_with_files(folder, clients=range(NUM_CLIENTS)):
    """Every client's part of the data set, moved into a file of its own."""
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
    from dataclasses import replace

    from client_app.update import Contributor, update_in_clear
    from gdpfed.clients.configured import order_of
    from gdpfed.learning.models import flatten
    from gdpfed.learning.task import Task
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
    assert update_in_clear(moved, theta, parameters, Contributor(0, "run", tmp_path / "0.npz")).any()


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
        ({"x_train": X, "y_train": Y + 1}, "class numbers from 0 to 2"),
        ({"x_train": X, "y_train": Y / 2}, "y_train is float64; it must hold class numbers"),
        ({"x_train": X + np.nan, "y_train": Y}, "not finite"),
    ],
)
def test_examples_of_another_form_are_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(LearningError, match=words):
        own_split(tmp_path / "own.npz", FORM)


def test_examples_are_taken_as_they_are(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=X + 0.5, y_train=Y.astype(np.uint8))
    split = own_split(tmp_path / "own.npz", FORM)
    assert (split.x.dtype, split.y.dtype, len(split)) == (np.dtype(np.float32), np.dtype(np.int64), 4)
    assert (split.x == 0.5).all()


def test_kinds_of_files_without_a_reader_are_named(tmp_path):
    (tmp_path / "own.txt").write_text("1,2")
    with pytest.raises(LearningError, match="no kind of file 'txt': choose one of csv, npz, parquet"):
        own_split(tmp_path / "own.txt", FORM)
