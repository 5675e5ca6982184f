"""Tests of sums over Flower's grid: dropout tolerances, clipping norms, and requests that are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.clients.configured import order_of, task_of
from gdpfed.errors import RunError
from gdpfed.learning.models import flatten
from gdpfed.learning.training.local_update import clip, local_update
from gdpfed.methods.base import SumRequest
from gdpfed.privacy.release import NoiseAt
from secagg import threshold_for
from server_app.exchange import Exchanger
from server_app.grid_fleet import GridFleet
from testing.local_grid import FIRST_NODE_ID, as_grid
from testing.small_runs import as_charged, grid_for

NUM_CLIENTS = 12


def request(theta, name, clients, *, noise_multiplier=1.0, noise_at=NoiseAt.CLIENT, norms=None):
    return SumRequest(
        name=name,
        clients=np.asarray(clients),
        clipping_norm=1.0,
        noise_multiplier=noise_multiplier,
        noise_at=noise_at,
        client_clipping_norms=norms,
        start=theta,
    )


def small_fleet(*overrides):
    config = load([f"dataset.num_clients={NUM_CLIENTS}", *overrides])
    grid = grid_for(config)
    nodes = {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS)}
    task = task_of(config)
    fleet = GridFleet(Exchanger(as_grid(grid), nodes, 60.0), config.secagg, "test")
    return fleet, grid, order_of(config, task), flatten(task.build_model())


def test_requests_that_share_clients_are_all_summed():
    fleet, grid, order, theta = small_fleet()
    sums = fleet.sum_updates(
        order, as_charged([request(theta, "a", range(6)), request(theta, "b", range(3, 9))])
    )
    assert [(each.name, each.survivors) for each in sums] == [("a", 6), ("b", 6)]
    assert all(each.total.shape == theta.shape for each in sums)
    assert [kind for kind, _ in grid.sent].count("mask") == 12


def test_noise_too_small_for_the_grid_is_refused():
    fleet, _, order, theta = small_fleet()
    with pytest.raises(RunError, match="tiny: .*raise the noise_multiplier or modulus_bits"):
        fleet.check(order, [request(theta, "tiny", range(12), noise_multiplier=1e-6)])


@pytest.mark.parametrize(
    ("work", "words"), [("held_out_counts", "rounding 24 counts"), ("vote", "rounding votes")]
)
def test_a_sum_beside_the_rounds_on_too_coarse_a_grid_is_refused_before_the_run(work, words):
    fleet, _, order, theta = small_fleet()
    asked = replace(request(theta, "once", range(12), noise_multiplier=1.0), work=work, coordinates=24)
    fleet.check(order, [asked])
    with pytest.raises(RunError, match=f"once: {words} to steps of .*more clients"):
        fleet.check(order, [replace(asked, clipping_norm=1e6)])


def test_noise_that_nobody_would_add_is_refused():
    fleet, _, order, theta = small_fleet()
    with pytest.raises(RunError, match="a asks for noise with multiplier 1.0, and names nobody to add it"):
        fleet.sum_updates(order, as_charged([request(theta, "a", range(6), noise_at=NoiseAt.NOWHERE)]))


@pytest.mark.parametrize("mode", ["pairwise", "off"])
def test_every_client_is_clipped_to_its_own_norm(mode):
    fleet, _, order, theta = small_fleet(f"secagg={mode}")
    norms = np.linspace(0.012, 0.12, NUM_CLIENTS)
    asked = request(theta, "a", range(12), norms=norms, noise_multiplier=1e-4)
    (together,) = fleet.sum_updates(order, as_charged([replace(asked, clipping_norm=0.12)]))
    expected = np.zeros(len(theta))
    for client_id, norm in enumerate(norms):
        rng = np.random.default_rng([order.task.seed, client_id, order.round_index])
        data, device = order.task.client_data(client_id), torch.device("cpu")
        update = local_update(order.task.build_model(), theta, data, order.training, rng=rng, device=device)
        assert float(update.norm()) > norm
        expected += clip(update, norm).numpy()
    # Six times the noise of the sum.
    np.testing.assert_allclose(together.total, expected, atol=7.2e-5)


@pytest.mark.parametrize(
    ("norms", "multiplier", "match"),
    [
        (np.array([0.1] + [1.0] * 11), 1.0, None),
        (np.array([0.09] + [1.0] * 11), 1.0, "clipping norms from 0.09 to 1 in one sum"),
        (np.array([0.9] + [1.0] * 11), 0.0, "the largest may be 1 times the smallest"),
    ],
)
def test_norms_by_which_one_update_would_stand_out_are_refused_before_the_run(norms, multiplier, match):
    fleet, _, order, theta = small_fleet()
    noise_at = NoiseAt.CLIENT if multiplier else NoiseAt.NOWHERE
    asked = [request(theta, "a", range(12), norms=norms, noise_multiplier=multiplier, noise_at=noise_at)]
    if match is None:
        fleet.check(order, asked)
    else:
        with pytest.raises(RunError, match=match):
            fleet.check(order, asked)


def test_a_norm_that_rounding_would_use_up_is_refused():
    fleet, _, order, theta = small_fleet()
    norms = np.array([1e-9] + [1.0] * 11)
    with pytest.raises(RunError, match="a: rounding .* takes more than the clipping norm 1e-09"):
        fleet.check(order, [request(theta, "a", range(12), norms=norms)])


@pytest.mark.parametrize("size", range(3, 13))
def test_every_cohort_size_can_be_summed_at_the_largest_tolerances(size):
    overrides = ["secagg.threshold=0.5", "secagg.dropout_tolerance=0.45", "secagg.corrupt_tolerance=0.1"]
    fleet, _, order, theta = small_fleet(*overrides)
    (result,) = fleet.sum_updates(order, as_charged([request(theta, "a", range(size))]))
    assert result.survivors == size
    assert threshold_for(size, 0.5) > (size - 1) / 2
