"""Lanes of large models, with a stand-in that repeats a step by calling it."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from gdpfed.learning.models import flatten
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples
from gdpfed.simulation.lanes import MOST_LANES, LanedTraining, groups_of
from tests.simulation.small_cohorts import order_of
from tests.simulation.test_step_graphs import CPU, CalledAgain

MOST_OFF = 1e-5


def trainings(order):
    """In lanes with a stand-in for graphs, and all clients together."""
    model, loss, record = order.task.build_model(), order.task.make_loss(), CalledAgain()
    laned = LanedTraining(deepcopy(model), CPU, "float32", loss, record)
    return laned, BatchedTraining(model, CPU, "float32", loss), record


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("model", ["mlp", "cnn3"])
def test_rounds_end_where_they_end_together(model, momentum):
    order = order_of(model, momentum=momentum)
    laned, together, record = trainings(order)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    for clients, rate in ((range(5), 0.5), (range(20, 33), 0.1), (range(5), 0.1)):
        training = replace(order.training, learning_rate=rate)
        batches = Batches.draw(order, clients)
        ours = laned.updates(theta, training, examples, batches)
        theirs = together.updates(theta, training, examples, batches)
        assert ours.shape == theirs.shape == (len(clients), len(theta))
        assert ours.dtype == torch.float64
        assert (ours - theirs).abs().max() <= MOST_OFF * theirs.abs().max()
        assert theirs.abs().max() > 1e-3
    # 13 clients are a group of 6 and one of 7, and 5 have a graph of their own, which is recorded once.
    assert record.recorded == 3
    assert record.replayed == 4 * order.training.local_steps


def test_clients_may_start_from_models_of_their_own():
    order = order_of("mlp")
    laned, together, _ = trainings(order)
    examples, start = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    thetas = start + np.linspace(0, 0.01, 3, dtype=np.float32)[:, None]
    batches = Batches.draw(order, range(3))
    ours, theirs = (each.updates(thetas, order.training, examples, batches) for each in (laned, together))
    assert (ours - theirs).abs().max() <= MOST_OFF * theirs.abs().max()


def test_another_optimizer_or_added_gradients_go_together_as_without_lanes():
    order = order_of("mlp")
    laned, together, record = trainings(order)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    batches = Batches.draw(order, range(3))
    added = torch.linspace(-0.1, 0.1, 3 * len(theta)).view(3, -1)
    adam = replace(order.training, optimizer="adam", learning_rate=0.01)
    for training, more in ((adam, None), (order.training, added)):
        ours, theirs = (each.updates(theta, training, examples, batches, more) for each in (laned, together))
        assert torch.equal(ours, theirs)
    assert record.recorded == 0


def test_another_momentum_has_lanes_of_its_own():
    order = order_of("mlp", momentum=0.5)
    laned, together, record = trainings(order)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    batches = Batches.draw(order, range(2))
    for momentum in (0.5, 0.0, 0.5):
        training = replace(order.training, momentum=momentum)
        ours, theirs = (each.updates(theta, training, examples, batches) for each in (laned, together))
        assert (ours - theirs).abs().max() <= MOST_OFF * theirs.abs().max()
    assert record.recorded == 3


def test_groups_are_few_and_nearly_equal():
    for number in range(200):
        sizes = [group.stop - group.start for group in groups_of(number)]
        assert sum(sizes) == number
        assert len(sizes) == -(-number // MOST_LANES)
        assert not sizes or max(sizes) - min(sizes) <= 1
