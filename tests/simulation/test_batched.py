"""Tests of the batched engine: clients trained at once get the updates that each gets alone."""

from dataclasses import replace
from threading import Lock

import numpy as np
import pytest
import torch
from torch import nn

from fastgrad.lowered import NotLoweredError
from fastgrad.modules import cross_entropy
from gdpfed.clients.order import ClientPart
from gdpfed.learning.data import Split
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import MODELS
from gdpfed.learning.task import Task
from gdpfed.simulation import training_choice
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.engine import SequentialEngine
from gdpfed.simulation.training_choice import CPU_BYTES, clients_at_once, kept_bytes
from tests.simulation.small_cohorts import cohort_of, order_of, theta_of, updates_by

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("num_clients", "batch_size"), [(400, 4), (400, 2), (400, 50), (2000, 4)])
def test_every_client_ends_where_it_ends_alone(model, momentum, num_clients, batch_size):
    order = order_of(model, momentum=momentum, num_clients=num_clients, batch_size=batch_size)
    cohort = cohort_of(order)
    alone = updates_by(SequentialEngine(), order, cohort)
    together = updates_by(BatchedEngine(order.task, CPU), order, cohort)
    assert alone.keys() == together.keys() == set(cohort.clients)
    sizes = {len(order.task.client_indices(client_id)) for client_id in cohort.clients}
    assert len(sizes) == 2
    assert any(steps.any() for steps in alone.values())
    for client_id, steps in alone.items():
        off = np.abs(together[client_id] - steps).max() * cohort.encoding.grid
        # Of an update of norm 1 at most: what four steps in float32 differ by in another order of adding.
        assert off <= 1e-5, client_id


@pytest.mark.parametrize("model", ["mlp", "cnn3"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_sum_is_the_same_bit_for_bit_whatever_the_chunk(model, momentum):
    order = order_of(model, momentum=momentum)
    cohort = cohort_of(order, 23)
    sums = [
        BatchedEngine(order.task, CPU, chunk_clients=size).sum_updates(order, theta_of(order), cohort)
        for size in (1, 2, 5, 16, 23, None)
    ]
    assert {each.num_updates for each in sums} == {23}
    assert sums[0].total.any()
    assert all(np.array_equal(each.total, sums[0].total) for each in sums[1:])


def not_fitted(*model):
    raise NotLoweredError("no compiled loops in this test")


def scaled(outputs, targets):
    """Return the losses, divided by the largest of all records that are given at once."""
    losses = cross_entropy(outputs, targets)
    return losses / losses.detach().max()


def test_a_loss_of_a_package_sees_the_records_of_one_client_at_a_time(monkeypatch):
    monkeypatch.setitem(LOSSES._items, "scaled", scaled)
    monkeypatch.setattr(training_choice, "fitted", not_fitted)
    order = order_of()
    order = replace(order, task=replace(order.task, loss="scaled"))
    cohort = cohort_of(order)
    alone, together = (
        updates_by(BatchedEngine(order.task, CPU, chunk_clients=size), order, cohort) for size in (1, 20)
    )
    assert all(np.array_equal(together[client_id], steps) for client_id, steps in alone.items())


class Remembering(nn.Module):
    """A model that divides by the sum of all inputs that it has seen."""

    def __init__(self):
        super().__init__()
        self.last, self.seen = nn.Linear(64, 10), torch.zeros(())

    def forward(self, x):
        self.seen = self.seen + x.detach().sum()
        return self.last(x.flatten(1) / self.seen)


@pytest.mark.parametrize("batched", [True, False])
def test_what_a_model_keeps_of_one_client_no_other_client_meets(batched, monkeypatch):
    monkeypatch.setitem(MODELS._items, "remembering", lambda shape, classes: Remembering())
    order = order_of("remembering")
    engine = BatchedEngine(order.task, CPU, chunk_clients=2) if batched else SequentialEngine()
    cohort = cohort_of(order)
    there = updates_by(engine, order, cohort)
    back = updates_by(engine, order, replace(cohort, clients=cohort.clients[::-1]))
    assert all(np.array_equal(back[client_id], steps) for client_id, steps in there.items())


def test_a_model_that_no_copy_stands_for_is_trained_by_both_engines(monkeypatch):
    def closed(shape, classes):
        model = Remembering()
        last = model.last
        vars(model)["forward"] = lambda x: last(x.flatten(1))
        vars(model)["lock"] = Lock()
        return model

    monkeypatch.setitem(MODELS._items, "closed", closed)
    order = order_of("closed")
    for engine in (BatchedEngine(order.task, CPU, chunk_clients=2), SequentialEngine()):
        assert all(steps.any() for steps in updates_by(engine, order, cohort_of(order, 4)).values())


@pytest.mark.parametrize(("model", "kind"), [("mlp", BatchedTraining), ("cnn3", ProgrammedTraining)])
def test_no_example_of_another_client_fills_a_batch_up(model, kind, monkeypatch):
    order = order_of(model, batch_size=50)
    assert isinstance(BatchedEngine(order.task, CPU)._training, kind)
    cohort, found = cohort_of(order), []
    assert 0 not in np.concatenate([order.task.client_indices(client_id) for client_id in cohort.clients])
    # A client without examples is in the sum, too.
    empty = {client_id: order.task.client_indices(client_id) for client_id in range(400)} | {
        9: np.zeros(0, int)
    }
    monkeypatch.setattr(Task, "client_indices", lambda task, client_id: empty[client_id])
    data = order.task.load()
    for size in (1.0, 3e38):
        x = data.train.x.copy()
        x[0] = size * np.sign(x[0] - 0.5)
        changed = replace(data, train=Split(x, data.train.y))
        monkeypatch.setattr(Task, "load", lambda task, changed=changed: changed)
        found.append(updates_by(BatchedEngine(order.task, CPU), order, cohort))
    assert all(np.array_equal(steps, found[1][client_id]) for client_id, steps in found[0].items())


def test_the_sum_is_that_of_the_updates():
    order = order_of()
    cohort, engine = cohort_of(order), BatchedEngine(order.task, CPU, chunk_clients=6)
    total = sum(updates_by(engine, order, cohort).values())
    np.testing.assert_array_equal(engine.sum_updates(order, theta_of(order), cohort).total, total)


def test_a_client_that_diverged_sends_zero_and_stays_in_the_sum():
    order = order_of(learning_rate=1e30)
    cohort, engine = cohort_of(order), BatchedEngine(order.task, CPU)
    result = engine.sum_updates(order, theta_of(order), cohort)
    assert result.num_updates == 20
    assert not result.total.any()


def test_who_would_wrap_the_sum_is_held_to_its_range_in_both_engines():
    """The sequential and the batched engine limit updates that would wrap the sum, and keep all clients."""
    order = order_of("linear", learning_rate=150.0)
    cohort = cohort_of(order, clipping_norm=float("inf"), noise_multiplier=0.0)
    alone = updates_by(SequentialEngine(), order, cohort)
    together = updates_by(BatchedEngine(order.task, CPU), order, cohort)
    assert len(alone) == len(together) == 20
    limit = cohort.encoding.coordinate_limit
    on_the_edge = {client for client, steps in alone.items() if np.abs(steps).max() == limit}
    assert 0 < len(on_the_edge) < 20
    assert all(np.abs(steps).max() <= limit for steps in alone.values())
    assert on_the_edge == {client for client, steps in together.items() if np.abs(steps).max() == limit}


def test_a_step_weighs_the_examples_that_a_client_has():
    order = order_of(num_clients=2000, batch_size=3)
    clients = list(range(10))
    batches = Batches.draw(order, clients)
    for column, client_id in enumerate(clients):
        own = order.task.client_indices(client_id)
        assert batches.weights[:, column].sum() == len(own) * 4
        assert set(batches.positions[:, column][batches.weights[:, column] > 0]) == set(own)


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
@pytest.mark.parametrize(
    ("optimizer", "options"), [("sgd", '{"weight_decay": 0.3}'), ("adamw", '{"weight_decay": 0.3}')]
)
def test_weight_decay_moves_no_client_without_examples(model, optimizer, options):
    order = order_of(model, num_clients=2000)
    training = replace(order.training, optimizer=optimizer, optimizer_options=options, learning_rate=0.1)
    order, cohort = replace(order, training=training), cohort_of(order)
    empty = {client for client in cohort.clients if not len(order.task.client_indices(client))}
    assert 0 < len(empty) < len(cohort.clients)
    for engine in (SequentialEngine(), BatchedEngine(order.task, CPU)):
        found = updates_by(engine, order, cohort)
        assert {client for client, steps in found.items() if not steps.any()} == empty


def test_a_chunk_takes_no_more_memory_than_is_meant_for_it():
    order = order_of()
    training = BatchedTraining(order.task.build_model(), CPU)
    examples = DeviceExamples(order.task, CPU)
    kept = kept_bytes(training, theta_of(order), order, examples)
    assert kept >= 4 * len(theta_of(order))
    assert 1 < clients_at_once(training, theta_of(order), order, examples) <= CPU_BYTES / kept


@pytest.mark.parametrize("precision", ["bf16"])
def test_a_lower_precision_moves_the_update_a_little(precision):
    order = order_of()
    cohort = cohort_of(order)
    exact, rough = (
        BatchedEngine(order.task, CPU, precision=each).sum_updates(order, theta_of(order), cohort).total
        for each in ("float32", precision)
    )
    off = np.linalg.norm(exact - rough) / np.linalg.norm(exact)
    # bf16 keeps 8 bits: a step is off by less than 2**-8 of itself, and something is off.
    assert 1e-6 < off < 0.02


def test_clients_with_bounds_of_their_own_are_held_to_them():
    order = order_of()
    cohort = cohort_of(order)
    norms = dict(zip(cohort.clients[5:], np.linspace(0.01, 0.1, 15), strict=True))
    cohort = replace(cohort, parts={client: ClientPart(norm) for client, norm in norms.items()})
    alone = updates_by(SequentialEngine(), order, cohort)
    together = updates_by(BatchedEngine(order.task, CPU, chunk_clients=4), order, cohort)
    held = 0
    for client_id, steps in alone.items():
        assert np.abs(together[client_id] - steps).max() * cohort.encoding.grid <= 1e-5
        norm = norms.get(client_id, 1.0)
        reached = cohort.encoding.grid * np.linalg.norm(together[client_id].astype(float))
        assert reached <= norm
        held += reached > 0.999 * cohort.encoding.clipped_to(norm).clip_bound
    assert held >= 10
