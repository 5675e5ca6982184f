"""Tests of sets of labels, labels of pixels and event times: all training engines agree with a node."""

from typing import Any

import numpy as np
import pytest
import torch

from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.record_forms import gradients_of
from gdpfed.clients.works.update import batch_generator
from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.local_update import local_update
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.simulation.batched_training import BatchedTraining, Batches, DeviceExamples, ProgrammedTraining
from gdpfed.simulation.training_choice import choose_training

CPU = torch.device("cpu")


def saved(path, x, y):
    """Save examples, ten of them for testing, and return their data source."""
    np.savez(path, x_train=x[10:], y_train=y[10:], x_test=x[:10], y_test=y[:10])
    return DataSource("npz", str(path))


def sets(path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 20))
    return saved(path / "sets.npz", x, x[:, :3] + 0.3 * rng.normal(size=(60, 3)) > 0)


def pixels(path):
    """Save pictures of noise, in which each pixel has the class bright, dark or neither."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1, 6, 5))
    return saved(path / "pixels.npz", x, (x[:, 0] > 0.4).astype(int) + 2 * (x[:, 0] < -0.4))


def times(path):
    """Save 60 records with the time of an event, or the time until which none was seen."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(60, 3))
    days, left = 40 * rng.exponential(np.exp(x[:, 0])), rng.uniform(5, 90, 60)
    lines = [f"{a},{b},{c},{min(t, u)},{int(t <= u)}" for (a, b, c), t, u in zip(x, days, left, strict=True)]
    (path / "times.csv").write_text("\n".join(["a,b,c,days,died", *lines, ""]))
    (path / "columns.yaml").write_text(
        "label: {time: days, event: died, edges: [10, 20, 35, 50, 80]}\n"
        "numeric: {a: [-1, 1], b: [-1, 1], c: [-1, 1]}\n"
    )
    return DataSource("csv", str(path / "times.csv"))


LOSSES = {sets: "binary_cross_entropy", times: "discrete_hazard"}
TASKS: dict[str, Any] = {
    "sets, compiled": (sets, "mlp", {"model_options": (("hidden_units", 500),)}, ProgrammedTraining),
    "sets, weighed": (sets, "linear", {"class_weights": (1.0, 4.0, 0.5)}, BatchedTraining),
    "pixels": (pixels, "fcn", {}, BatchedTraining),
    "times, compiled": (times, "mlp", {"model_options": (("hidden_units", 1500),)}, ProgrammedTraining),
    "times": (times, "linear", {}, BatchedTraining),
    "pixels, weighed": (pixels, "fcn", {"class_weights": (1.0, 4.0, 0.5)}, BatchedTraining),
}


@pytest.fixture(params=TASKS)
def case(request, tmp_path):
    make, model, more, engine = TASKS[request.param]
    loss = LOSSES.get(make, "cross_entropy")
    return Task(make(tmp_path), model, "iid", 7, 0, loss=loss, **more).described(), engine


def test_all_engines_end_where_a_node_ends(case):
    task, engine = case
    order = TrainingOrder(task, LocalTraining(3, 4, 0.5, 0.5), round_index=1, device="cpu")
    theta, clients = flatten(task.build_model()), [2, 5]
    chosen, _ = choose_training(task, CPU, "float32")
    assert isinstance(chosen, engine)
    many = BatchedTraining(task.build_model(), CPU, loss=task.make_loss())
    examples, batches = DeviceExamples(task, CPU), Batches.draw(order, clients)
    found = [each.updates(theta, order.training, examples, batches) for each in (chosen, many)]
    for row, client in enumerate(clients):
        alone = local_update(
            task.build_model(),
            theta,
            task.client_data(client),
            order.training,
            rng=batch_generator(order, client),
            device=CPU,
            loss=task.make_loss(),
        )
        assert alone.norm() > 0.01
        for each in found:
            assert (each[row] - alone).norm() <= 1e-4 * alone.norm()


def test_the_gradient_of_a_record_is_that_of_the_mean_over_its_labels(case):
    task, _ = case
    gradients, data = gradients_of(task, CPU), task.client_data(0)
    assert gradients.form.startswith("many records at once by ")
    model, loss = task.build_model(), task.make_loss()
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    theta = torch.from_numpy(flatten(model))
    found = gradients.rows(theta[None], x[None], y[None])[0]
    for number in range(len(data)):
        one = loss(model(x[number : number + 1]), y[number : number + 1])
        assert one.shape == (1,)
        expected = torch.autograd.grad(one[0], list(model.parameters()))
        torch.testing.assert_close(
            found[number], torch.cat([each.flatten() for each in expected]), rtol=1e-4, atol=1e-6
        )
    one = gradients.clipped_sums(
        theta[None], x[None], y[None], torch.ones(1, len(data), dtype=torch.bool), torch.tensor([0.1])
    )
    norms = found.norm(dim=1, keepdim=True)
    torch.testing.assert_close(one[0], (found * (0.1 / norms).clamp(max=1)).sum(dim=0), rtol=1e-4, atol=1e-6)


def test_a_model_that_says_nothing_of_a_pixel_is_refused(tmp_path):
    task = Task(pixels(tmp_path), "linear", "iid", 7, 0)
    with pytest.raises(
        LearningError, match=r"outputs of shape \(3,\) for a record, .* need \(3, 6, 5\): choose"
    ):
        task.build_model()
