"""Tests of steps that are recorded once for each shape and replayed, with a stand-in for CUDA graphs."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from gdpfed.learning.models import flatten
from gdpfed.learning.training.step_recording import MOST_SHAPES, WARM_UPS, CudaGraphs, padded
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples
from gdpfed.simulation.step_graphs import GraphedTraining
from gdpfed.simulation.training_choice import _graphed
from tests.simulation.small_cohorts import cohort_of, order_of, updates_by

CPU = torch.device("cpu")
# A step by addcmul is rounded as one by sub on a GPU, and in the last bit otherwise on a CPU.
MOST_OFF = 1e-6


class CalledAgain:
    """A stand-in for CUDA graphs that repeats a step by calling it as often as a graph runs it."""

    def __init__(self):
        self.recorded, self.replayed = 0, 0

    def __call__(self, step):
        self.recorded += 1
        for _ in range(WARM_UPS):
            step()
        self.step = step
        return Again(self, step)


class Again:
    def __init__(self, owner, step):
        self.owner, self.step = owner, step

    def replay(self):
        self.owner.replayed += 1
        self.step()


def trainings(order):
    """Return a training with a stand-in for graphs, one without graphs, and the stand-in."""
    model, loss, record = order.task.build_model(), order.task.make_loss(), CalledAgain()
    graphed = GraphedTraining(deepcopy(model), CPU, "float32", loss, record)
    return graphed, BatchedTraining(model, CPU, "float32", loss), record


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
def test_rounds_end_where_they_end_without_graphs(model, momentum):
    order = order_of(model, momentum=momentum)
    graphed, plain, record = trainings(order)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    # 9 clients take a graph of 10, and so do 10; another learning rate takes none of its own.
    for clients, rate in ((range(9), 0.5), (range(20, 30), 0.1), (range(9), 0.1)):
        training = replace(order.training, learning_rate=rate)
        batches = Batches.draw(order, clients)
        ours = graphed.updates(theta, training, examples, batches)
        theirs = plain.updates(theta, training, examples, batches)
        assert ours.shape == theirs.shape == (len(clients), len(theta))
        assert (ours - theirs).abs().max() <= MOST_OFF * theirs.abs().max()
        assert theirs.abs().max() > 1e-3
    assert (record.recorded, record.replayed) == (1, 3 * order.training.local_steps)


def test_clients_may_start_from_models_of_their_own_and_add_to_their_gradients():
    order = order_of("mlp")
    graphed, plain, record = trainings(order)
    examples = DeviceExamples(order.task, CPU)
    start = flatten(order.task.build_model())
    thetas = start + np.linspace(0, 0.01, 3, dtype=np.float32)[:, None]
    added = torch.linspace(-0.1, 0.1, 3 * len(start)).view(3, -1)
    batches = Batches.draw(order, range(3))
    theirs = plain.updates(thetas, order.training, examples, batches, added)
    for _ in range(2):
        ours = graphed.updates(thetas, order.training, examples, batches, added)
        assert (ours - theirs).abs().max() <= MOST_OFF * theirs.abs().max()
    without = graphed.updates(thetas, order.training, examples, batches)
    assert (without - theirs).abs().max() > 100 * MOST_OFF
    assert record.recorded == 2


def test_an_optimizer_with_a_state_is_not_recorded():
    order = order_of("mlp")
    graphed, plain, record = trainings(order)
    adam = replace(order.training, optimizer="adam", learning_rate=0.01)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    batches = Batches.draw(order, range(3))
    ours, theirs = (each.updates(theta, adam, examples, batches) for each in (graphed, plain))
    assert torch.equal(ours, theirs)
    assert record.recorded == 0


def test_a_run_goes_on_without_graphs_once_one_is_refused(caplog):
    order = order_of("mlp")
    graphed, plain, record = trainings(order)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    graphed.updates(theta, order.training, examples, Batches.draw(order, range(3)))

    def refuse(step):
        raise RuntimeError("no graph\nhere")

    graphed._record = refuse
    for number in (20, 3):
        batches = Batches.draw(order, range(number))
        ours, theirs = (each.updates(theta, order.training, examples, batches) for each in (graphed, plain))
        assert torch.equal(ours, theirs)
    assert [each.message for each in caplog.records] == [
        "steps are called one by one from now on, to the same bits: no graph here"
    ]
    assert record.replayed == order.training.local_steps


def test_a_graph_that_memory_does_not_hold_is_for_the_engine_to_halve():
    order = order_of("mlp")
    graphed, _, _ = trainings(order)

    def refuse(step):
        raise torch.cuda.OutOfMemoryError

    graphed._record = refuse
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    with pytest.raises(torch.cuda.OutOfMemoryError):
        graphed.updates(theta, order.training, examples, Batches.draw(order, range(3)))


def test_at_most_a_quarter_is_padding_and_shapes_are_few():
    sizes = [padded(number, 4) for number in range(1, 1025)]
    assert all(number <= size <= 1.25 * number for number, size in enumerate(sizes, start=1))
    assert sorted(set(sizes[63:128])) == [64, 80, 96, 112, 128]
    assert len(set(sizes)) < 4 * 10


def test_the_graph_that_was_used_longest_ago_goes():
    order = order_of("linear")
    graphed, _, record = trainings(order)
    examples, theta = DeviceExamples(order.task, CPU), flatten(order.task.build_model())
    for number in (*range(1, MOST_SHAPES + 1), 1, 20, 1):
        graphed.updates(theta, order.training, examples, Batches.draw(order, range(number)))
    # 8 shapes, and 20 in the place of 2: 1 was used after it, and is still there.
    assert record.recorded == MOST_SHAPES + 1
    assert len(graphed._steps) == MOST_SHAPES


def test_an_engine_with_graphs_trains_as_one_without(monkeypatch):
    order = order_of("mlp", momentum=0.5)
    cohort = cohort_of(order)
    plain = BatchedTraining(order.task.build_model(), CPU, "float32", order.task.make_loss())
    updates = {}
    for training in (trainings(order)[0], plain):
        engine = BatchedEngine(order.task, CPU, chunk_clients=7)
        engine.__dict__["_training"] = training
        updates[type(training)] = updates_by(engine, order, cohort)
    ours, theirs = updates[GraphedTraining], updates[BatchedTraining]
    assert ours.keys() == theirs.keys() == set(cohort.clients)
    assert max(np.abs(ours[each] - theirs[each]).max() for each in ours) * cohort.encoding.grid <= MOST_OFF


def test_a_model_whose_step_cannot_be_recorded_trains_without_and_the_line_says_why():
    def refuse(step):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    task = order_of("mlp").task
    training, words = _graphed(task, CPU, "float32", refuse)
    assert type(training) is BatchedTraining
    assert words == ", without graphs (operation not permitted when stream is capturing)"
    training, words = _graphed(task, CPU, "float32", CalledAgain())
    assert type(training) is GraphedTraining
    assert words == ", a graph a step"
    assert len(training._steps) == 0


def test_graphs_share_a_pool_and_the_first_one_after_all_are_gone_begins_a_new_one(monkeypatch):
    pools, numbers = [], iter(range(9))

    class Graph:
        pass

    class Stream:
        def wait_stream(self, other):
            pass

    def graph(recorded, pool, capture_error_mode):
        pools.append(pool)
        return nullcontext()

    monkeypatch.setattr("torch.cuda.CUDAGraph", Graph)
    monkeypatch.setattr("torch.cuda.graph", graph)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: next(numbers))
    monkeypatch.setattr("torch.cuda.Stream", lambda device: Stream())
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: Stream())
    monkeypatch.setattr("torch.cuda.stream", lambda stream: nullcontext())
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    taken = []
    record = CudaGraphs(CPU)
    first = record(lambda: taken.append(1))
    second = record(lambda: taken.append(2))
    del first
    third = record(lambda: taken.append(3))
    del second, third
    record(lambda: taken.append(4))
    assert pools == [0, 0, 0, 1]
    assert taken == [number for number in (1, 2, 3, 4) for _ in range(WARM_UPS + 1)]
