"""Tests of batched training on records: a client's result is what it computes alone from the same bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gdpfed.clients.order import ClientPart, OrderError
from gdpfed.clients.record_forms import gradients_of, graphs_of
from gdpfed.learning.models import MODELS
from gdpfed.learning.training.step_recording import recorder
from gdpfed.record_steps import RecordSteps
from gdpfed.simulation.batched import BatchedEngine, BatchedRecords
from gdpfed.simulation.engine import SequentialEngine
from tests.simulation.small_cohorts import cohort_of, order_of, theta_of, updates_by
from tests.simulation.test_step_graphs import CalledAgain

CPU = torch.device("cpu")


def bits_of(client_id):
    """Return a source of random bytes that is the same at each call, so that engines can be compared."""
    return np.random.default_rng(client_id).bytes


def told(cohort, work):
    """Return the cohort with steps, rates, norms, noise and weights that depend on client id modulo 3."""
    parts = {}
    for client in cohort.clients:
        kind = client % 3
        records = RecordSteps(
            num_steps=2 + kind,
            batch_rates=(0.2 + 0.3 * kind,),
            clipping_norm=0.1 * (1 + kind),
            noise_multiplier=0.3 * (1 + kind),
        )
        if work == "gradient_sum":
            records = replace(records, num_steps=1, noise_multiplier=0.0)
        parts[client] = ClientPart(weight=1.0 + kind, records=records)
    return replace(cohort, parts=parts)


def cohort_for(order, size=20):
    if order.work == "dp_sgd":
        return told(cohort_of(order, size, clipping_norm=float("inf"), noise_multiplier=0.0), order.work)
    return told(cohort_of(order, size, clipping_norm=5.0, noise_multiplier=0.01), order.work)


@pytest.mark.parametrize("work", ["dp_sgd", "gradient_sum"])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
@pytest.mark.parametrize("num_clients", [60, 2000])
def test_every_client_ends_where_it_ends_alone(model, work, num_clients):
    order = replace(order_of(model, num_clients=num_clients, momentum=0.5), work=work)
    cohort = cohort_for(order)
    alone = updates_by(SequentialEngine(bits_of), order, cohort)
    together = updates_by(BatchedEngine(order.task, CPU, bits=bits_of), order, cohort)
    in_chunks = updates_by(BatchedEngine(order.task, CPU, bits=bits_of, chunk_clients=3), order, cohort)
    assert alone.keys() == together.keys() == in_chunks.keys() == set(cohort.clients)
    assert sum(steps.any() for steps in alone.values()) >= 5
    for client_id, steps in alone.items():
        for other in (together, in_chunks):
            assert np.abs(other[client_id] - steps).max() * cohort.encoding.grid <= 2e-5, client_id


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("resident", [True, False])
def test_an_engine_that_replays_steps_computes_what_nodes_compute(model, resident):
    """An engine that replays recorded steps, by a stand-in for CUDA graphs, computes what nodes compute."""
    order = replace(order_of(model, num_clients=60, momentum=0.5), work="dp_sgd")
    cohort, record = cohort_for(order), CalledAgain()
    alone = updates_by(SequentialEngine(bits_of), order, cohort)
    engine = BatchedEngine(order.task, CPU, bits=bits_of)
    train = order.task.load().train
    everything = train.take(np.arange(len(train)))
    examples = (torch.from_numpy(everything.x), torch.from_numpy(everything.y)) if resident else None
    gradients = gradients_of(order.task, CPU)
    graphs, words = graphs_of(order.task, gradients, record, examples)
    assert words == ", a graph a step"
    engine.__dict__["_records"] = BatchedRecords(gradients, bits_of, graphs)
    together = updates_by(engine, order, cohort)
    # 4 steps, of which two are taken by fewer clients, and those of the trial.
    assert record.replayed >= 4 + 3
    assert together.keys() == alone.keys() == set(cohort.clients)
    for client_id, steps in alone.items():
        assert np.abs(together[client_id] - steps).max() * cohort.encoding.grid <= 2e-5, client_id
    adam = replace(order, training=replace(order.training, optimizer="adam", momentum=0.0))
    replayed = record.replayed
    updates_by(engine, adam, cohort)
    assert record.replayed == replayed


def test_steps_that_cannot_be_replayed_are_called_and_words_say_why(monkeypatch):
    def refuse(step):
        raise RuntimeError("operation not permitted")

    task = order_of("mlp").task
    gradients = gradients_of(task, CPU)
    assert graphs_of(task, gradients, None) == (None, "")
    assert graphs_of(task, gradients, refuse) == (None, ", without graphs (operation not permitted)")
    monkeypatch.setattr(type(gradients), "stacks", False)
    assert graphs_of(task, gradients, CalledAgain()) == (
        None,
        ", without graphs (gradients go many records at once by one pass)",
    )
    assert recorder(CPU) is None


def test_models_that_cannot_go_together_take_their_turns(monkeypatch):
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)) * self.bias.sum().cos()

    monkeypatch.setitem(MODELS._items, "scaled", lambda shape, classes: Scaled(64, classes))
    order = replace(order_of("scaled", num_clients=60), work="dp_sgd")
    cohort = cohort_for(order, 6)
    engine = BatchedEngine(order.task, CPU, bits=bits_of)
    assert engine._records.clients_at_once(650) == 1
    assert engine._records.form == "many records at once by vmap"
    alone = updates_by(SequentialEngine(bits_of), order, cohort)
    for client_id, steps in updates_by(engine, order, cohort).items():
        assert np.abs(alone[client_id] - steps).max() * cohort.encoding.grid <= 2e-5


def test_batches_and_noise_of_a_run_are_fresh():
    order = replace(order_of("linear"), work="dp_sgd")
    cohort, engine = cohort_for(order), BatchedEngine(order.task, CPU)
    first, second = (engine.sum_updates(order, theta_of(order), cohort).total for _ in range(2))
    assert np.mean(first == second) < 0.01


def test_a_lower_precision_is_not_for_records():
    order = replace(order_of("linear"), work="dp_sgd")
    engine = BatchedEngine(order.task, CPU, precision="bf16")
    with pytest.raises(OrderError, match="simulation.precision=bf16 .* leave it out"):
        engine.sum_updates(order, theta_of(order), cohort_for(order))
