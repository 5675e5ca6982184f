"""From sum requests to exchanges: tolerances, and what is refused."""

import numpy as np
import pytest
from local_grid import FIRST_NODE_ID, LocalGrid

from conf.load import load
from gdpfed.learning.models import flatten
from gdpfed.methods.base import NoiseAt, SumRequest
from gdpfed.rounds.errors import RunError
from gdpfed.rounds.run import order_of, task_of
from secagg import threshold_for
from server_app.exchange import Exchanger
from server_app.fleet import GridFleet

NUM_CLIENTS = 12


def request(name, clients, *, noise_multiplier=1.0, noise_at=NoiseAt.CLIENT):
    return SumRequest(name, np.asarray(clients), 1.0, noise_multiplier, noise_at)


def small_fleet(*overrides):
    config = load([f"dataset.num_clients={NUM_CLIENTS}", *overrides])
    grid = LocalGrid(NUM_CLIENTS)
    nodes = {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS)}
    task = task_of(config)
    fleet = GridFleet(Exchanger(grid, nodes, 60.0), config.secagg, "test")
    return fleet, grid, order_of(config, task), flatten(task.build_model())


def test_requests_that_share_clients_are_all_summed():
    fleet, grid, order, theta = small_fleet()
    sums = fleet.sum_updates(order, theta, [request("a", range(6)), request("b", range(3, 9))])
    assert [(each.name, each.survivors) for each in sums] == [("a", 6), ("b", 6)]
    assert all(each.total.shape == theta.shape for each in sums)
    assert [kind for kind, _ in grid.sent].count("masked") == 12


def test_noise_too_small_for_the_grid_is_refused():
    fleet, _, order, theta = small_fleet()
    with pytest.raises(RunError, match="tiny: .*raise the noise_multiplier or modulus_bits"):
        fleet.check(order, theta, [request("tiny", range(12), noise_multiplier=1e-6)])


def test_noise_that_nobody_would_add_is_refused():
    fleet, _, order, theta = small_fleet()
    with pytest.raises(RunError, match="a asks for noise of 1.0 from nobody"):
        fleet.sum_updates(order, theta, [request("a", range(6), noise_at=NoiseAt.NOWHERE)])


@pytest.mark.parametrize("size", range(3, 13))
def test_every_cohort_size_can_be_summed_at_the_largest_tolerances(size):
    overrides = ["secagg.threshold=0.5", "secagg.dropout_tolerance=0.45", "secagg.corrupt_tolerance=0.1"]
    fleet, _, order, theta = small_fleet(*overrides)
    (result,) = fleet.sum_updates(order, theta, [request("a", range(size))])
    assert result.survivors == size
    assert threshold_for(size, 0.5) > (size - 1) / 2
