"""Tests of steps on records as GPU graphs: bitwise as plain calls, close to a CPU; skipped without a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conf.load import load
from fastgrad.forms import record_gradients
from fastgrad.modules import cross_entropy
from fastgrad.record_gradients import RecordGradients, TapedGradients
from gdpfed.clients.configured import task_of
from gdpfed.clients.record_forms import built_graphs
from gdpfed.learning.models import build_model, flatten
from gdpfed.learning.training import record_graphs
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.learning.training.record_graphs import RecordGraphs
from gdpfed.learning.training.record_training import RecordHolder, noised_updates
from gdpfed.learning.training.secret_draws import PoissonBatches
from gdpfed.learning.training.step_recording import CudaGraphs
from gdpfed.record_steps import RecordSteps
from gdpfed.simulation.batched import BatchedEngine
from gdpfed.simulation.engine import SequentialEngine
from gdpfed.simulation.engine_choice import NOT_NOISED, choose_engine
from tests.simulation.small_cohorts import order_of, updates_by
from tests.simulation.test_batched_records import bits_of, cohort_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

GPU = torch.device("cuda")
# Of an update of norm 1 at most: float32 sums in another order.
MOST_OFF = 1e-4


def most_off(cohort, ours, theirs):
    assert ours.keys() == theirs.keys() == set(cohort.clients)
    return max(np.abs(ours[each] - theirs[each]).max() for each in theirs) * cohort.encoding.grid


def records(shape, count):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, *shape, generator=generator), torch.randint(10, (count,), generator=generator)


def holders(count, noise_multiplier=1.0):
    """Return two clients with different rates and numbers of steps; each call gives the same random bits."""
    found = []
    for k, (own, rate, steps) in enumerate(((range(count), 0.5, 6), (range(0, count, 2), 0.2, 4))):
        told = RecordSteps(
            num_steps=steps, batch_rates=(rate,), clipping_norm=0.5, noise_multiplier=noise_multiplier
        )
        batches = PoissonBatches(told.batch_rates, np.zeros(len(own), dtype=np.int64))
        found.append(RecordHolder(np.array(own), told, batches, np.random.default_rng(k).bytes))
    return found


@pytest.mark.parametrize("width", [None, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "shape"), [("linear", (1, 8, 8)), ("cnn2", (1, 28, 28)), ("mlp", (1, 8, 8))]
)
def test_replays_have_the_bits_of_calls(name, shape, momentum, width, monkeypatch):
    model, (x, y) = build_model(name, shape, 10, seed=0), records(shape, 64)
    gradients = record_gradients(model, cross_entropy, x[:3], y[:3], device=GPU)
    assert gradients.form.startswith("many records at once")
    if width is not None:
        monkeypatch.setattr(record_graphs, "width_for", lambda batches, most: width)
    training, theta = LocalTraining(1, 1, 0.1, momentum), flatten(model)
    there = x.to(GPU), y.to(GPU)

    def take(places):
        where = torch.from_numpy(places).to(GPU)
        return there[0][where], there[1][where]

    ends = {}
    for what, graphs in (
        ("replayed", RecordGraphs(gradients, CudaGraphs(GPU), there)),
        ("called", RecordGraphs(gradients, None, there)),
        ("copied in", RecordGraphs(gradients, CudaGraphs(GPU))),
    ):
        # The second time by the same graph.
        first, ends[what] = (graphs.updates(theta, training, holders(64), take) for _ in range(2))
        assert torch.equal(first, ends[what])
    assert torch.equal(ends["replayed"], ends["called"])
    assert torch.equal(ends["replayed"], ends["copied in"])
    plain = noised_updates(gradients, theta, training, holders(64), take)
    torch.testing.assert_close(ends["replayed"], plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn3"])
def test_an_engine_with_graphs_computes_what_nodes_compute(model):
    order = replace(order_of(model, num_clients=60, momentum=0.5), work="dp_sgd")
    cohort = cohort_for(order)
    alone = updates_by(SequentialEngine(bits_of), order, cohort)
    engine = BatchedEngine(order.task, GPU, bits=bits_of, graphs=True)
    assert engine._records.graphs is not None
    assert most_off(cohort, updates_by(engine, order, cohort), alone) <= MOST_OFF
    there = replace(order, device="cuda")
    assert built_graphs(order.task, GPU) is not None
    assert most_off(cohort, updates_by(SequentialEngine(bits_of), there, cohort), alone) <= MOST_OFF


def test_resnet18_is_recorded_and_computes_what_autograd_computes(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    shape, (x, y) = (1, 28, 28), records((1, 28, 28), 24)
    model = build_model("resnet18", shape, 10, seed=0)
    theta, there = flatten(model), (x.to(GPU), y.to(GPU))
    gradients = TapedGradients(model, cross_entropy, GPU)
    start = torch.from_numpy(theta).to(GPU)[None]
    one_by_one = RecordGradients(model, cross_entropy, GPU).rows(
        start, there[0][None, :6], there[1][None, :6]
    )
    ours = gradients.rows(start, there[0][None, :6], there[1][None, :6])
    # A ReLU of ResNet's many whose input is nearly zero opens by one way and stays shut by the other.
    assert (ours - one_by_one).norm() <= 1e-2 * one_by_one.norm()
    norms = one_by_one[0].double().norm(dim=1)
    clipped = (one_by_one[0] * (norms.median() / norms).clamp(max=1.0)[:, None]).sum(dim=0)
    everyone = torch.ones(1, 6, dtype=torch.bool, device=GPU)
    sums = gradients.clipped_sums(
        start, there[0][None, :6], there[1][None, :6], everyone, norms.median()[None].float()
    )
    assert (sums[0] - clipped).norm() <= 1e-2 * clipped.norm()
    training = LocalTraining(1, 1, 0.01, 0.0)

    def take(places):
        where = torch.from_numpy(places).to(GPU)
        return there[0][where], there[1][where]

    ends = [
        RecordGraphs(gradients, record, there).updates(theta, training, holders(24)[:1], take)
        for record in (CudaGraphs(GPU), None)
    ]
    assert torch.equal(*ends)
    assert ends[0].isfinite().all()


def test_the_line_of_a_run_says_that_steps_on_records_are_graphs():
    settings = ["method=ali_dpfl", "privacy=record_level", "dataset.model=mlp", "simulation.graphs=auto"]
    config = load(["secagg=off", "run.device=cuda", *settings])
    engine, words = choose_engine(config.simulation, task_of(config), "cuda", records=True, noised_steps=True)
    engine.close()
    assert ", many records at once by one pass, a graph a step on " in words
    engine, words = choose_engine(config.simulation, task_of(config), "cuda", records=True)
    engine.close()
    assert NOT_NOISED in words
