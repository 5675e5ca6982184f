"""Tests of training by compiled programs: updates as by vmap, bitwise the same for any set of clients."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from conf.load import load
from fastgrad import kernels
from fastgrad import lowered as module
from fastgrad.lowering import lower
from fastgrad.modules import cross_entropy
from gdpfed.clients.configured import order_of as configured_order
from gdpfed.clients.configured import task_of
from gdpfed.clients.record_forms import gradients_of
from gdpfed.clients.works.update import batch_generator
from gdpfed.learning.models import MODELS, build_model, flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import difference
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.engine_choice import choose_engine
from gdpfed.simulation.training_choice import choose_training
from tests.simulation.small_cohorts import order_of, theta_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn2", (1, 28, 28)), ("cnn3", (3, 16, 16)), ("mlp", (1, 28, 28)), ("linear", (3, 5, 7))],
)
@pytest.mark.parametrize("width", [1, 7])
def test_gradients_are_those_of_vmap(name, shape, width):
    model = build_model(name, shape, 10, seed=0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(width, *shape, generator=generator)
    y = torch.randint(10, (width,), generator=generator)
    # The last example fills up the batch.
    weights = torch.full((width,), 1 / width)
    weights[-1] = 0.0 if width > 1 else 1.0
    training = ProgrammedTraining(lower(model, shape), cross_entropy)
    theta = torch.from_numpy(flatten(model))
    training.load(theta)
    ours = training.in_order(training.gradient(x, y, weights))
    (theirs,) = BatchedTraining(model, CPU).gradients(theta[None], x[None], y[None], weights[None])
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_an_update_is_computed_as_on_a_node_in_the_order_of_the_model():
    generator = np.random.default_rng(0)
    ends, starts = generator.normal(size=(2, 40)).astype(np.float32)
    ends[:3], starts[1], order = np.inf, np.inf, generator.permutation(40)
    ends[order[1]] = np.inf
    update = np.empty(40)
    kernels.differences(ends, starts, order, update)
    assert np.isnan(update[1])
    expected = difference(torch.from_numpy(ends[order]), torch.from_numpy(starts))
    assert update.tobytes() == expected.numpy().tobytes()


def updates_of(training, order, clients):
    batches = Batches.draw(order, clients, with_keys=training.draws)
    return training.updates(theta_of(order), order.training, DeviceExamples(order.task, CPU), batches)


def as_by_vmap(training, order, clients):
    """Return the updates of clients; check that each is within 1e-5 of the update by vmap."""
    ours = updates_of(training, order, clients)
    theirs = updates_of(BatchedTraining(order.task.build_model(), CPU), order, clients)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()
    return ours


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("num_clients", [90, 2000])
def test_updates_are_those_of_vmap_with_clients_of_any_size(num_clients, momentum):
    order = order_of("cnn3", num_clients=num_clients, batch_size=50, momentum=momentum, learning_rate=0.1)
    training, words = choose_training(order.task, CPU, "float32")
    assert isinstance(training, ProgrammedTraining)
    assert words == ", by compiled loops"
    clients = range(5, 9)
    ours = as_by_vmap(training, order, clients)
    sizes = [len(order.task.client_indices(client)) for client in clients]
    assert [bool(update.any()) for update in ours] == [size > 0 for size in sizes]


def normalised(task):
    """Return a model with group normalisation and mean pooling, as a user may write one."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 128, 3, bias=False),
        nn.GroupNorm(16, 128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def test_normalised_pictures_are_trained_as_by_vmap_bit_for_bit_the_same_whoever_is_beside(monkeypatch):
    monkeypatch.setattr(Task, "build_model", normalised)
    order = order_of(num_clients=90, batch_size=13, momentum=0.9, learning_rate=0.1)
    training, words = choose_training(order.task, CPU, "float32")
    assert words == ", by compiled loops"
    ours = as_by_vmap(training, order, range(3))
    assert torch.equal(updates_of(training, order, [2, 0]), ours[[2, 0]])
    assert gradients_of(order.task, CPU).form == "many records at once by compiled loops"


def test_texts_are_trained_as_by_vmap_bit_for_bit_the_same_whoever_is_beside(tmp_path):
    draw = np.random.default_rng(0)
    speeches = [f"ROLE {role}:\n{''.join(draw.choice(list('abcde '), 130))}\n" for role in range(6)]
    (tmp_path / "plays.txt").write_text("\n".join(speeches), "utf-8")
    config = load(
        [
            "dataset=shakespeare",
            f"dataset.path={tmp_path / 'plays.txt'}",
            "dataset.num_clients=6",
            "dataset.sequence_length=9",
            "dataset.model_options={hidden_units: 6}",
            "dataset.local_steps=3",
        ]
    )
    order = configured_order(config, task_of(config))
    training, words = choose_training(order.task, CPU, "float32")
    assert words == ", by compiled loops"
    ours = as_by_vmap(training, order, range(6))
    assert torch.equal(updates_of(training, order, [4, 1]), ours[[4, 1]])
    assert choose_training(order.task, CPU, "bf16")[1] == ""


def test_a_batch_that_does_not_fit_the_cache_goes_in_pieces(monkeypatch):
    order = order_of("cnn3", num_clients=90, batch_size=13, learning_rate=0.1)
    whole = updates_of(choose_training(order.task, CPU, "float32")[0], order, range(3))
    monkeypatch.setattr(module, "MOST_RECORDS", 4)
    in_pieces = updates_of(choose_training(order.task, CPU, "float32")[0], order, range(3))
    assert not torch.equal(whole, in_pieces)
    assert (whole - in_pieces).norm() <= 1e-5 * whole.norm()
    alone = updates_of(choose_training(order.task, CPU, "float32")[0], order, [2])
    assert torch.equal(alone[0], in_pieces[2])


def test_pieces_have_few_sizes():
    assert [piece.stop for piece in module.pieces_of(23, 8)] == [8, 16, 20, 22, 23]
    assert list(module.pieces_of(0, 8)) == []
    lowered = lower(build_model("cnn2", (1, 28, 28), 10, seed=0), (1, 28, 28))
    assert 1 < lowered.most_records < module.MOST_RECORDS
    assert lowered.most_records * lowered.bytes_a_record <= module.CACHE_BYTES


class Doubled(nn.Flatten):
    """A layer that compiled programs do not support."""

    def forward(self, x):
        return 2 * super().forward(x)


def wrong(order):
    """Return a model with a hook, which its layers do not show."""
    model = build_model("cnn3", (1, 8, 8), 10, seed=0)
    next(model.children()).register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


def test_what_is_wrong_or_unknown_goes_through_vmap(monkeypatch):
    order = order_of("cnn3")
    assert isinstance(choose_training(order.task, CPU, "bf16")[0], BatchedTraining)
    monkeypatch.setattr(Task, "build_model", wrong)
    training, words = choose_training(order.task, CPU, "float32")
    assert isinstance(training, BatchedTraining)
    assert words == ""
    large = nn.Sequential(Doubled(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
    monkeypatch.setattr(Task, "build_model", lambda task: large)
    assert isinstance(choose_training(order.task, CPU, "float32")[0], BatchedTraining)


def words_of(*overrides, records=False):
    config = load(["simulation.workers=1", "dataset.model=cnn3", *overrides])
    engine, words = choose_engine(config.simulation, task_of(config), "cpu", records=records)
    engine.close()
    return words


def test_the_run_says_whether_loops_are_compiled(monkeypatch):
    assert words_of() == "many clients at once, by compiled loops on the CPU"
    assert words_of("simulation.precision=bf16") == "many clients at once on the CPU"
    assert words_of(records=True) == (
        "many clients at once, many records at once by compiled loops on the CPU"
    )
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    without = "without compiled loops (numba is switched off by NUMBA_DISABLE_JIT) on the CPU"
    assert words_of() == f"many clients at once, {without}"
    assert words_of(records=True) == f"many clients at once, many records at once by one pass, {without}"


def test_numba_is_loaded_for_models_that_need_it_only():
    code = (
        "import sys, conf.load, gdpfed.clients.configured, gdpfed.simulation.engine_choice as choice\n"
        "config = conf.load.load(['simulation.workers=1', 'dataset.model=linear'])\n"
        "task = gdpfed.clients.configured.task_of(config)\n"
        "for records in (False, True):\n"
        "    choice.choose_engine(config.simulation, task, 'cpu', records=records)\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def with_dropout(input_shape, num_classes):
    dense = nn.Linear(math.prod(input_shape), 150), nn.ReLU(), nn.Dropout(0.5), nn.Linear(150, num_classes)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.1), *dense)


def test_dropout_leaves_out_the_same_by_programs_by_vmap_and_on_a_node(monkeypatch):
    monkeypatch.setitem(MODELS._items, "with_dropout", with_dropout)
    order = order_of("with_dropout", num_clients=90, batch_size=13, momentum=0.9, learning_rate=0.1)
    training, words = choose_training(order.task, CPU, "float32")
    assert words == ", by compiled loops"
    ours = as_by_vmap(training, order, range(3))
    assert torch.equal(updates_of(training, order, [2, 0]), ours[[2, 0]])
    for client, ours_alone in enumerate(ours):
        data, rng = order.task.client_data(client), batch_generator(order, client)
        model = order.task.build_model()
        theirs = local_update(model, theta_of(order), data, order.training, rng=rng, device=CPU)
        assert (ours_alone - theirs).norm() <= 1e-5 * theirs.norm()
