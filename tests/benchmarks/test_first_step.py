"""Tests of benchmarks.first_step, which estimates the cosine between a first step with and without noise."""

import math

import numpy as np
import pytest

from benchmarks.first_step import common_norm, first_updates, row
from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.clients.update import update_steps
from gdpfed.clients.works import Job
from gdpfed.learning.models import flatten
from secagg import Encoding


def test_what_clients_do_not_share_is_not_counted_as_step() -> None:
    """If updates are a common vector plus independent noise, the estimated step has that vector's norm."""
    generator = np.random.default_rng(0)
    shared = np.zeros(5000, dtype=np.float32)
    shared[0] = 1.0
    own = generator.standard_normal((40, 5000)).astype(np.float32) * 0.02
    bound, step = common_norm(shared + own)
    assert bound == pytest.approx(math.sqrt(1 + 0.02**2 * 5000), rel=0.02)
    assert step == pytest.approx(1.0, abs=0.03)
    assert common_norm(own)[1] < 0.2 * bound


def test_the_cosine_is_that_of_a_noised_step() -> None:
    """If all updates are equal and the noise has twice their norm, the cosine is 1 over the root of 5."""
    updates = np.tile(np.array([3.0, 4.0, 0.0, 0.0], dtype=np.float32), (5, 1))
    assert common_norm(updates) == pytest.approx((5.0, 5.0))
    assert row("all", updates, noise_per_step=1.0) == ("all", "4", "1.00", "2.00", f"{1 / math.sqrt(5):.3f}")


def test_updates_are_those_of_a_runs_first_round() -> None:
    """The benchmark computes the same unclipped update as a client in the first round, up to rounding."""
    config = load(["dataset=digits", "method=fedavg"])
    order = order_of(config, task_of(config))
    theta = flatten(order.task.build_model())
    encoding = Encoding(
        grid=1e-6,
        num_contributors=2,
        dimension=len(theta),
        clipping_norm=math.inf,
        integer_noise_stddev=0.0,
    )
    steps = update_steps(Job(order, theta, encoding, 1))
    np.testing.assert_allclose(first_updates(config, 2)[1], steps * encoding.grid, atol=2e-6)
