"""Tests of the Renyi filter of several runs: its inequality at every loss, and what strategies gain by it."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from gdpfed.audit.accounting import charges_of, composed_epsilon
from gdpfed.privacy.accountants.composition import compose_runs
from gdpfed.privacy.accountants.discrete import MOST_EPSILON
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.accountants.rdp import (
    FILTER_ORDERS,
    _filter_weights,
    epsilon_of_renyi,
    filter_epsilon,
    renyi_curve,
)
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps, SampledGaussian

DELTA = 1e-3


def gaussian(mu):
    return {order: order * mu**2 / 2 for order in FILTER_ORDERS}


@pytest.mark.parametrize("limit", [1e-3, 0.3, 1.0, 4.0, 30.0, 1e3])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12])
def test_the_weights_of_orders_add_up_to_one(limit, delta):
    weights = _filter_weights(limit, delta)
    assert tuple(weights) == FILTER_ORDERS
    assert min(weights.values()) > 0
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("limit", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.5, 2.0, 10.0])
def test_the_inequality_of_the_filter_holds_at_every_loss_and_no_smaller_epsilon_keeps_it(limit, mu):
    curve, weights = gaussian(mu), _filter_weights(limit, DELTA)
    epsilon = filter_epsilon(curve, DELTA, limit)
    losses = np.linspace(0, epsilon + 20, 400_001)
    logs = np.full_like(losses, -np.inf)
    for order, weight in weights.items():
        logs = np.logaddexp(logs, math.log(weight) + (order - 1) * (losses - curve[order]))
    allowed = DELTA * np.exp(np.minimum(logs, 700))
    assert np.all(-np.expm1(np.minimum(epsilon - losses, 0)) <= allowed * (1 + 1e-9))
    assert np.any(-np.expm1(np.minimum(0.999 * epsilon - losses, 0)) > allowed)


def test_orders_that_a_release_lacks_prove_nothing():
    curve = gaussian(0.5)
    whole = {order: value for order, value in curve.items() if order == int(order)}
    assert filter_epsilon(whole, DELTA, 2.0) >= filter_epsilon(curve, DELTA, 2.0)
    assert filter_epsilon(dict.fromkeys(curve, math.inf), DELTA, 2.0) == math.inf
    assert filter_epsilon({}, DELTA, 2.0) == math.inf
    assert filter_epsilon(gaussian(1e6), DELTA, 2.0) > 1e10


@pytest.mark.parametrize("mu", [0.05, 0.2, 0.5, 1.5])
def test_gaussian_runs_cost_five_percent_more_at_most_than_at_the_best_order(mu):
    best = epsilon_of_renyi(gaussian(mu), 1e-5)
    assert best < filter_epsilon(gaussian(mu), 1e-5, None) < 1.05 * best


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "times"),
    [
        *((1.29, 0.0256, 26, 1.21), (1.5, 0.02, 100, 1.16), (2.0, 0.003, 1, 1.46), (0.6, 0.01, 10, 1.2)),
        *((1.0, 0.01, 1000, 1.1), (1.0, 0.01, 10_000, 1.03), (1.0, 0.001, 10_000, 1.28)),
    ],
)
def test_steps_on_small_batches_cost_as_much_more_than_at_the_best_order_as_is_said(
    sigma, rate, steps, times
):
    """docs/privacy.md says how much."""
    step = renyi_curve(DPSGDSteps(batch_rate=rate, noise_multiplier=sigma, num_steps=steps))
    found = filter_epsilon(step, 1e-5, None) / epsilon_of_renyi(step, 1e-5)
    assert found == pytest.approx(times, abs=0.01)


def test_a_slightly_larger_budget_may_allow_less():
    """The weights jump where the order that suits the budget changes; docs/privacy.md says by how much."""
    runs = gaussian(math.sqrt(87.07) / 3)
    allowed = [filter_epsilon(runs, 1e-4, limit) <= limit for limit in (17.38, 17.4, 17.41, 17.65, 17.7)]
    assert allowed == [False, True, False, False, True]


@pytest.mark.parametrize("sigma", [0.5, 0.8, 1.3, 4.0])
@pytest.mark.parametrize(("rate", "count"), [(0.001, 150), (0.01, 50), (0.1, 30), (1.0, 3)])
@pytest.mark.parametrize("noise", ["gaussian", "discrete_gaussian"])
def test_node_and_audit_allow_the_same_runs_and_show_a_budget_that_allows_them(sigma, rate, count, noise):
    """Also where the budget is just enough, and where one order outweighs all others."""
    event = SampledGaussian(
        sampling="poisson",
        sampling_rate=rate,
        group_size=100,
        noise_stddev=sigma,
        clipping_norm=1.0,
        adjacency="zero_out",
        noise=noise,
    )
    planned = [[Charge(event=event, count=count)]] * 2
    audited = [charges_of([{"event": event.to_dict(), "count": count}])] * 2
    shown = compose_runs(planned, 1e-5).epsilon
    if shown > MOST_EPSILON:
        return
    assert compose_runs(planned, 1e-5, limit=shown).epsilon <= shown
    for share in (0.9, 0.99, 1.0, 1.001, 1.05, 1.5):
        limit = shown * share
        epsilon = compose_runs(planned, 1e-5, limit=limit).epsilon
        second = composed_epsilon(audited, 1e-5, at_most=limit)
        assert (epsilon <= limit) == (second <= limit) or epsilon == pytest.approx(limit, rel=1e-6)


def test_no_second_run_that_is_chosen_by_the_first_takes_delta_above_what_is_stated():
    """The attacker sees the loss of a Gaussian run, then takes the worst second one that fits, or none."""
    limit, first = 1.0, 0.15
    largest = next(
        mu
        for mu in np.linspace(0.5, 0, 5001)
        if filter_epsilon(gaussian(math.hypot(first, mu)), DELTA, limit) <= limit
    )
    assert gaussian_epsilon(1 / largest, DELTA) > 0.5
    seconds = np.linspace(0, largest, 40)[1:]
    losses, step = np.linspace(-3, 3, 6001, retstep=True)
    masses = norm.pdf(losses, first**2 / 2, first) * step
    # E (1 - e^(limit - x - L))_+ of a second run with loss L ~ N(mu^2 / 2, mu^2).
    at = limit - losses
    stopped = -np.expm1(np.minimum(at, 0))
    gained = [norm.sf(at / mu - mu / 2) - np.exp(at) * norm.sf(at / mu + mu / 2) for mu in seconds]
    true_delta = float(masses @ np.maximum(stopped, np.max(gained, axis=0)))
    assert 0.01 * DELTA < true_delta <= DELTA
