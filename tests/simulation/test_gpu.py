"""Tests that a GPU trains what a CPU trains, up to the order of float32 sums; skipped without a GPU."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.cli import main
from gdpfed.clients.configured import task_of
from gdpfed.clients.record_forms import gradients_of
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.batched_training import BatchedTraining
from gdpfed.simulation.engine import SequentialEngine
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.parallel_engines import SeveralDevices
from gdpfed.simulation.step_graphs import GraphedTraining
from tests.simulation.small_cohorts import cohort_of, order_of, theta_of, updates_by
from tests.simulation.test_batched_models import MODELS, drawn
from tests.simulation.test_batched_records import bits_of, cohort_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

GPU = torch.device("cuda")
# Of an update of norm 1 at most: what four steps in a precision differ by from float32 on a CPU.
MOST_OFF = {"float32": 1e-4, "tf32": 2e-2, "bf16": 1e-1}


def most_off(cohort, ours, theirs):
    assert ours.keys() == theirs.keys() == set(cohort.clients)
    assert any(steps.any() for steps in theirs.values())
    return max(np.abs(ours[each] - theirs[each]).max() for each in theirs) * cohort.encoding.grid


@pytest.mark.parametrize("precision", MOST_OFF)
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
def test_every_client_ends_where_it_ends_on_a_cpu(model, precision):
    order = order_of(model, momentum=0.5, learning_rate=0.05)
    cohort = cohort_of(order)
    alone = updates_by(SequentialEngine(), order, cohort)
    engine = BatchedEngine(order.task, GPU, precision=precision)
    assert most_off(cohort, updates_by(engine, order, cohort), alone) <= MOST_OFF[precision]


@pytest.mark.parametrize(("name", "shape", "options"), MODELS, ids=[each[0] for each in MODELS])
def test_gradients_of_every_model_are_those_of_a_cpu(name, shape, options):
    model, training, batch = drawn(name, shape, options)
    here = training.gradients(*batch)
    there = BatchedTraining(deepcopy(model), GPU).gradients(*(each.to(GPU) for each in batch)).cpu()
    # A ReLU of ResNet's many whose input is nearly zero opens on one device and stays shut on the other.
    most = 1e-2 if name == "resnet18" else 1e-4
    assert torch.linalg.vector_norm(there - here) <= most * torch.linalg.vector_norm(here)


@pytest.mark.parametrize("work", ["dp_sgd", "gradient_sum"])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
def test_gradients_of_records_are_those_of_a_cpu(model, work):
    order = replace(order_of(model, num_clients=60, momentum=0.5), work=work)
    cohort = cohort_for(order)
    alone = updates_by(SequentialEngine(bits_of), order, cohort)
    assert gradients_of(order.task, GPU).device.type == "cuda"
    engine = BatchedEngine(order.task, GPU, bits=bits_of)
    assert most_off(cohort, updates_by(engine, order, cohort), alone) <= MOST_OFF["float32"]


def test_a_chunk_that_memory_cannot_hold_is_halved(monkeypatch):
    order = order_of("cnn3")
    cohort = cohort_of(order, 20)
    whole = updates_by(BatchedEngine(order.task, GPU), order, cohort)
    engine, sizes, act = BatchedEngine(order.task, GPU), [], BatchedEngine._chunk

    def short_of_memory(self, order, theta, clients, cohort):
        sizes.append(len(clients))
        if len(clients) > 5:
            torch.empty(2**50, dtype=torch.uint8, device=GPU)
        return act(self, order, theta, clients, cohort)

    monkeypatch.setattr(BatchedEngine, "_chunk", short_of_memory)
    assert most_off(cohort, updates_by(engine, order, cohort), whole) <= MOST_OFF["float32"]
    assert sizes == [20, 10, 5, 5, 5, 5]


def test_several_devices_share_a_cohort():
    order = order_of()
    cohort = cohort_of(order, 21)
    alone, *two = (BatchedEngine(order.task, GPU, chunk_clients=3) for _ in range(3))
    shared = SeveralDevices(two)
    assert shared.sum_updates(order, theta_of(order), cohort).num_updates == 21
    ours, theirs = (updates_by(engine, order, cohort) for engine in (shared, alone))
    assert most_off(cohort, ours, theirs) <= MOST_OFF["float32"]


def test_a_gpu_is_taken_by_itself():
    config = load(["secagg=off"])
    engine, words = choose_engine(config.simulation, task_of(config), config.run.device)
    assert isinstance(engine, BatchedEngine)
    assert engine.device.type == "cuda"
    assert words.endswith(torch.cuda.get_device_name())


@pytest.mark.parametrize(
    "settings",
    [["method=gdpfed_star"], ["method=ali_dpfl", "privacy=record_level"]],
    ids=["clients", "records"],
)
def test_a_run_is_resumed_there_and_passes_its_audit(tmp_path, settings):
    run, common = tmp_path / "run", ["secagg=off", "run.num_rounds=3", "run.stop_after_round=1"]
    assert main(["simulate", *settings, *common, f"run.directory={run}"]) == 0
    assert main(["simulate", f"run.resume={run}", "run.stop_after_round=null"]) == 0
    assert len(read_rounds(run)) == 3
    assert main(["audit", str(run)]) == 0


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
def test_a_graph_a_step_has_the_bits_of_steps_without(model, momentum):
    order = order_of(model, momentum=momentum, learning_rate=0.05)
    cohort = cohort_of(order)
    engines = [BatchedEngine(order.task, GPU, chunk_clients=20, graphs=each) for each in (False, True)]
    without, with_graphs = (updates_by(each, order, cohort) for each in engines)
    assert type(engines[1]._training) is GraphedTraining
    assert without.keys() == with_graphs.keys() == set(cohort.clients)
    assert all(np.array_equal(without[each], with_graphs[each]) for each in without)


ROUNDS = 200


def test_two_hundred_rounds_of_changing_cohorts_hold_no_more_memory_than_fifty():
    order, held = order_of("mlp"), []
    engine = BatchedEngine(order.task, GPU, graphs=True)
    for number in range(ROUNDS):
        updates_by(engine, order, cohort_of(order, 5 + 7 * number % 30))
        held.append(torch.cuda.memory_allocated())
    assert max(held[50:]) <= max(held[:50])


def test_the_line_of_a_run_says_that_steps_are_graphs():
    config = load(["dataset=digits", "dataset.model=mlp", "simulation.graphs=auto", "run.device=cuda"])
    engine, words = choose_engine(config.simulation, task_of(config), "cuda")
    engine.close()
    assert words.startswith("many clients at once, a graph a step on ")
