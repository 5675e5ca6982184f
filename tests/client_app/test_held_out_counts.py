"""Tests of a client's counts on held-out records: the effect of one record, and metrics from the counts."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.update import contribution_steps, update_steps
from gdpfed.clients.works import Job
from gdpfed.clients.works.held_out_counts import of_records
from gdpfed.learning.data import Split
from gdpfed.learning.data.dataset import ExampleForm
from gdpfed.learning.data.own import OwnData, held_out_rows, own_held_out, own_split
from gdpfed.learning.models import flatten
from gdpfed.learning.training.held_out_counts import (
    counts_dimension,
    held_out_counts,
    judged,
    judged_rates,
)
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import Cohort, SequentialEngine
from secagg import SumParameters

TASK = task_of(load(["dataset=breast_cancer"])).described()
ORDER = order_of(load(["dataset=breast_cancer"]), TASK)
CPU = torch.device("cpu")
MODEL = TASK.build_model()
THETA = flatten(MODEL)
DIMENSION = counts_dimension(2)


def encoding_of(clipping_norm, work="held_out_counts", noise=3.0, blocks=1):
    dimension = blocks * counts_dimension(2, rates=work == "held_out_rates")
    return SumParameters(
        label="one",
        num_clients=4,
        threshold=3,
        dropout_tolerance=0,
        corrupt_tolerance=0,
        dimension=dimension,
        clipping_norm=clipping_norm,
        noise_multiplier=noise / clipping_norm,
    ).encoding(4)


@pytest.mark.parametrize(("clipping_norm", "blocks"), [(200.0, 1), (5.0, 1), (200.0, TASK.num_clients)])
def test_one_record_moves_what_is_encoded_by_the_square_root_of_two_at_most(clipping_norm, blocks):
    order, encoding = replace(ORDER, work="held_out_counts"), encoding_of(clipping_norm, blocks=blocks)
    data = TASK.held_out(0)

    def sent(records):
        job = Job(order, THETA, encoding, 0)
        return contribution_steps(order, of_records(job, records), encoding)

    whole = sent(data)
    for left_out in range(len(data)):
        without = sent(data.take(np.delete(np.arange(len(data)), left_out)))
        moved = encoding.grid * np.linalg.norm(whole - without)
        assert 0 < moved <= math.sqrt(2)
        assert clipping_norm < 20 or moved > 0.98 * math.sqrt(2)


class Raises(torch.nn.Linear):
    """A model that raises for one record, which is all zeros."""

    def forward(self, x):
        if not x.any():
            raise ValueError("a record of zeros")
        return super().forward(x)


def test_a_record_for_which_the_model_raises_is_one_cell_and_one_bin(monkeypatch):
    order, encoding = replace(ORDER, work="held_out_counts"), encoding_of(200.0)
    data = TASK.held_out(0)
    x = data.x.copy()
    x[3] = 0
    model = Raises(x.shape[1], 2)
    monkeypatch.setattr("gdpfed.clients.works.held_out_counts.built_model", lambda task: model)

    def sent(records):
        return contribution_steps(
            order, of_records(Job(order, flatten(model), encoding, 0), records), encoding
        )

    whole, places = replace(data, x=x), np.delete(np.arange(len(x)), 3)
    moved = encoding.grid * np.linalg.norm(sent(whole) - sent(whole.take(places)))
    assert 0 < moved <= math.sqrt(2)


@pytest.mark.parametrize(
    ("work", "blocks"), [("held_out_counts", 1), ("held_out_counts", TASK.num_clients), ("held_out_rates", 1)]
)
def test_both_engines_send_what_a_node_sends(work, blocks):
    order, encoding = replace(ORDER, work=work), encoding_of(100.0, work, blocks=blocks)
    cohort = Cohort([0, 3], encoding)
    node = np.sum([update_steps(Job(order, THETA, encoding, client)) for client in cohort.clients], axis=0)
    for engine in (SequentialEngine(), BatchedEngine(TASK, CPU)):
        assert (engine.sum_updates(order, THETA, cohort).total == node).all()
    assert (node != 0).any()
    if blocks > 1:
        # Each client is in its own block, and in no other.
        told = node.reshape(blocks, -1).any(axis=1)
        assert told.nonzero()[0].tolist() == cohort.clients


def test_the_same_examples_are_held_out_wherever_they_stand_and_none_is_trained_on(tmp_path):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(400, 2)).astype(np.float32), rng.integers(2, size=400)
    form = ExampleForm((2,), "float32", 2)
    order = rng.permutation(400)
    for name, places in (("first", np.arange(400)), ("second", order[:300])):
        np.savez(tmp_path / f"{name}.npz", x_train=x[places], y_train=y[places])
    first, second = (OwnData(tmp_path / f"{name}.npz", None, 0.25) for name in ("first", "second"))
    kept, trained = own_held_out(first, form), own_split(first.path, form, 0.25)
    assert len(kept) + len(trained) == 400
    assert 60 < len(kept) < 140
    rows = {row.tobytes() for row in trained.x}
    assert not any(row.tobytes() in rows for row in own_held_out(second, form).x)
    assert held_out_rows(Split(x, y), 0.0).sum() == 0


def test_metrics_of_counts_without_noise_are_those_of_the_records():
    rng = np.random.default_rng(2)
    labels = rng.integers(2, size=4000)
    outputs = np.stack([np.zeros(4000), rng.normal(1.5 * labels - 0.75, 1.0)], axis=1)
    found = judged(held_out_counts(outputs, labels), 2, 0.0)
    assert found["accuracy"].value == pytest.approx(np.mean((outputs[:, 1] > 0) == labels))
    ranks = outputs[:, 1].argsort().argsort()
    wins = ranks[labels == 1].sum() - (n := labels.sum()) * (n - 1) / 2
    assert found["AUC"].value == pytest.approx(wins / (n * (4000 - n)), abs=0.01)
    assert found["prevalence"].value == pytest.approx(labels.mean())
    assert judged_rates(np.array([1.0, 2.0]), 5.0)["accuracy"].value is None


def test_intervals_hold_the_true_value_as_often_as_they_say():
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(20):
        labels = rng.integers(2, size=300)
        right = rng.random(300) < 0.8
        outputs = np.where((labels == 1) == right, 1.0, -1.0)[:, None] * [[-0.5, 0.5]]
        noised = held_out_counts(outputs, labels) + rng.normal(0, 4.0, DIMENSION)
        interval: Any = judged(noised, 2, 4.0)["accuracy"]
        held += interval.low <= 0.8 <= interval.high
    # Of 20 draws at 95 %, fewer than 16 have a chance below 1 in 300.
    assert held >= 16
