"""Helpers that make orders (what clients are to train) and cohorts of the digits, for tests of engines."""

import numpy as np

from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.data import DataSource
from gdpfed.learning.models import flatten
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.simulation import parallel_engines
from gdpfed.simulation.engine import Cohort
from secagg import Contributors, Encoding
from testing.waiting import until


def order_of(model="mlp", *, num_clients=400, momentum=0.0, batch_size=4, learning_rate=0.5, seed=0):
    """Return a training instruction on 1,437 digits, split among clients: each of 400 clients has 3 or 4."""
    task = Task(DataSource("digits"), model, "iid", num_clients, seed=seed)
    training = LocalTraining(4, batch_size, learning_rate, momentum)
    return TrainingOrder(task, training, round_index=3, device="cpu")


def theta_of(order):
    return flatten(order.task.build_model())


def cohort_of(order, size=20, *, clipping_norm=1.0, noise_multiplier=1.0):
    encoding = Encoding.for_sum(
        Contributors(size),
        dimension=len(theta_of(order)),
        clipping_norm=clipping_norm,
        noise_multiplier=noise_multiplier,
    )
    return Cohort(list(range(7, 7 + size)), encoding)


def held_sums(folder, engine, part):
    """Wait for a file ``go`` in the folder; return a simulation engine's sums of a part of a cohort."""
    until((folder / "go").exists)
    return parallel_engines._sums_of_part(engine, part)


def updates_by(engine, order, cohort):
    """Return by client id the integer updates that a simulation engine computes for a cohort."""
    found: dict[int, np.ndarray] = {}
    for clients, steps in engine.updates(order, theta_of(order), cohort):
        assert steps.dtype == np.int64
        found |= dict(zip(clients, steps, strict=True))
    return found
