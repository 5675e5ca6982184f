"""Tests of the noise in decoded sums: its variance is the plan's, with and without Flower messages."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conf.load import load
from gdpfed.clients.configured import task_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.learning.models import flatten
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.methods import make_method
from gdpfed.privacy.sampling.cohorts import draw_cohorts
from gdpfed.simulation import InProcessFleet
from gdpfed.simulation.engine import SequentialEngine
from server_app.exchange import Exchanger
from server_app.grid_fleet import GridFleet
from testing.local_grid import FIRST_NODE_ID, IN_CLEAR, LocalGrid, as_grid
from testing.small_runs import as_charged, as_expected

NUM_CLIENTS = 36
# One sum of a wide model: keys cost by the client and the sum, noise by the parameter.
HIDDEN_UNITS = 400
DIMENSION = (64 + 1) * HIDDEN_UNITS + (HIDDEN_UNITS + 1) * 10
# Five standard deviations of a sample variance over N normal values: 5 sqrt(2 / N).
SIGMAS = 5.0


def grid_fleet(secagg, vanishes=lambda kind, client: False):
    nodes = {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS)}
    in_clear = IN_CLEAR if secagg.mode == "off" else None
    grid = LocalGrid(NUM_CLIENTS, vanishes=vanishes, node_config=in_clear)
    return GridFleet(Exchanger(as_grid(grid), nodes, 60.0), secagg, "noise")


def in_process_fleet(secagg):
    return InProcessFleet(secagg, "noise", SequentialEngine())


def noise_samples(overrides, make_fleet=grid_fleet, method="gdpfed"):
    """Return a plan and its sums of updates that are almost zero, so that the sums hold only noise."""
    config = load(
        [
            f"dataset.num_clients={NUM_CLIENTS}",
            "dataset.model=mlp",
            f"dataset.model_options={{hidden_units:{HIDDEN_UNITS}}}",
            f"method={method}",
            "privacy.sampling_rate=1",
            "privacy.delta=1e-3",
            "privacy.accountant=rdp",
            *overrides,
        ]
    )
    method, task = make_method(config), task_of(config)
    theta = flatten(task.build_model())
    training = LocalTraining(1, 4, 1e-12, 0.0)
    order = TrainingOrder(task, training, round_index=0, device="cpu", noise=config.privacy.noise)
    fleet = make_fleet(config.secagg)
    requests = method.requests(theta, 0, draw_cohorts(method.plan, 0, bytes(32)))
    return method.plan, [each.total for each in fleet.sum_updates(order, as_charged(requests))]


@pytest.mark.parametrize("make_fleet", [grid_fleet, in_process_fleet])
@pytest.mark.parametrize("noise", ["gaussian", "discrete_gaussian"])
@pytest.mark.parametrize("secagg", ["pairwise", "off"])
def test_variance_is_the_plans_in_every_group(secagg, noise, make_fleet):
    overrides = [f"secagg={secagg}", "secagg.dropout_tolerance=0", f"privacy.noise={noise}"]
    plan, sums = noise_samples(overrides, make_fleet)
    # A member of a masked sum of 12 knows its own share: the other 11 shares are the plan's noise.
    excess = 12 / 11 if secagg == "pairwise" else 1
    for group, samples in zip(plan.groups, sums, strict=True):
        stated = excess * (plan.clipping_norm * group.noise_multiplier) ** 2
        assert samples.size == DIMENSION
        assert samples.var() / stated == pytest.approx(1, abs=SIGMAS * np.sqrt(2 / samples.size))
        assert abs(samples.mean()) < SIGMAS * np.sqrt(stated / samples.size)
        kurtosis = np.mean((samples / samples.std()) ** 4)
        assert kurtosis == pytest.approx(3, abs=SIGMAS * np.sqrt(24 / samples.size))


@pytest.mark.parametrize("make_fleet", [grid_fleet, in_process_fleet])
@pytest.mark.parametrize(("secagg", "excess"), [("pairwise", 12 / 8), ("off", 1)])
def test_with_a_tolerance_masked_sums_have_noise_for_what_may_be_lost(secagg, excess, make_fleet):
    """Masked sums have extra noise in case clients drop out; sums in clear have exactly the plan's noise."""
    plan, sums = noise_samples([f"secagg={secagg}", "secagg.dropout_tolerance=0.25"], make_fleet)
    for group, samples in zip(plan.groups, sums, strict=True):
        stated = (plan.clipping_norm * group.noise_multiplier) ** 2
        # 12 clients a group, 3 of whom may vanish, and one of whom knows its own share.
        assert samples.var() / stated == pytest.approx(excess, rel=SIGMAS * np.sqrt(2 / samples.size))


def test_at_the_tolerated_dropouts_all_shares_but_one_are_exactly_the_plans():
    lost = {0, 1, 2, 12, 13, 14, 24, 25, 26}
    plan, sums = noise_samples(
        ["secagg.dropout_tolerance=0.25"],
        partial(grid_fleet, vanishes=lambda kind, client: kind == "mask" and client in lost),
    )
    for group, samples in zip(plan.groups, sums, strict=True):
        stated = (plan.clipping_norm * group.noise_multiplier) ** 2
        # 9 of 12 are left, and 8 shares of theirs are the plan's noise.
        assert samples.var() / stated == pytest.approx(9 / 8, rel=SIGMAS * np.sqrt(2 / samples.size))


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_discrete_noise_in_levels_is_the_plans_at_every_accepted_dropout(lost):
    gone = {start + k for start in (0, 12, 24) for k in range(lost)}
    plan, sums = noise_samples(
        [
            "privacy.noise=discrete_gaussian",
            "secagg.noise_levels=3",
            "secagg.dropout_tolerance=0.25",
        ],
        partial(grid_fleet, vanishes=lambda kind, client: kind == "mask" and client in gone),
    )
    for group, samples in zip(plan.groups, sums, strict=True):
        stated = (plan.clipping_norm * group.noise_multiplier) ** 2
        # Three levels for at most three dropouts: each count has a level of its own, so nothing is in excess
        # but the share that a member knows.
        expected = (12 - lost) / (11 - lost)
        assert samples.var() / stated == pytest.approx(expected, rel=SIGMAS * np.sqrt(2 / samples.size))


class AgreedAhead:
    """A fleet whose clients agree on keys during an earlier sum; some of them vanish after that."""

    def __init__(self, lost, secagg):
        nodes = {k: FIRST_NODE_ID + k for k in range(NUM_CLIENTS)}
        self.grid = LocalGrid(NUM_CLIENTS, vanishes=self.vanishes)
        self.fleet = GridFleet(Exchanger(as_grid(self.grid), nodes, 60.0), secagg, "noise")
        self.lost = lost

    def vanishes(self, kind, client):
        return self.grid.exchanges[-1] == {"mask"} and client in self.lost

    def sum_updates(self, order, charged):
        requests = [each.request for each in charged]
        self.fleet.sum_updates(order, charged, upcoming=lambda: as_expected(requests))
        seen = len(self.grid.exchanges)
        sums = self.fleet.sum_updates(replace(order, round_index=1), as_charged(requests, 1))
        assert self.grid.exchanges[seen:] == [{"mask"}, {"unmask"}]
        return sums


@pytest.mark.parametrize("levels", [0, 3])
def test_who_vanishes_after_keys_were_agreed_ahead_is_a_dropout(levels):
    gone = {start + k for start in (0, 12, 24) for k in range(2)}
    overrides = ["privacy.noise=discrete_gaussian", "secagg.dropout_tolerance=0.25"]
    plan, sums = noise_samples([*overrides, f"secagg.noise_levels={levels}"], partial(AgreedAhead, gone))
    # 10 of 12 are left; without levels each carries enough for 8 of them to be the plan's noise, with levels
    # what is beyond 9 shares is taken out.
    expected = 10 / 9 if levels else 10 / 8
    for group, samples in zip(plan.groups, sums, strict=True):
        stated = (plan.clipping_norm * group.noise_multiplier) ** 2
        assert samples.var() / stated == pytest.approx(expected, rel=SIGMAS * np.sqrt(2 / samples.size))


@pytest.mark.parametrize("make_fleet", [grid_fleet, in_process_fleet])
@pytest.mark.parametrize("noise", ["gaussian", "discrete_gaussian"])
def test_a_shared_noise_is_added_once_whatever_the_clipping_norms(noise, make_fleet):
    overrides = [f"privacy.noise={noise}", "secagg.dropout_tolerance=0"]
    plan, (samples,) = noise_samples(overrides, make_fleet, method="idp_fedavg_scale")
    assert samples.size == DIMENSION
    for group in plan.groups:
        # All 36 clients are in one sum, and one of them knows its own share.
        stated = 36 / 35 * (group.clipping_norm * group.noise_multiplier) ** 2
        assert samples.var() / stated == pytest.approx(1, abs=SIGMAS * np.sqrt(2 / samples.size))
    assert abs(samples.mean()) < SIGMAS * np.sqrt(samples.var() / samples.size)
