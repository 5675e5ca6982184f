"""Tests of sampling rates for one sum of all groups, against another search and known optima."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting as dp
import pytest
from scipy.optimize import brentq

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.planning.groups import Group, groups_from_shares
from gdpfed.privacy.planning.sampling_rates import closed_form_sampling_rates
from gdpfed.privacy.planning.shared_noise_rates import one_sum_sampling_rates
from testing.gaussian_dp import delta_of_mu

DELTA, ROUNDS = 1e-4, 40


def rates(accountant, groups, mean_rate, **terms):
    settings: dict[str, Any] = {"sampling": "poisson", "num_rounds": ROUNDS, "delta": DELTA} | terms
    return one_sum_sampling_rates(accountant, groups, sampling_rate=mean_rate, **settings)


def mean_over_clients(values, groups):
    sizes = [group.size for group in groups]
    return sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)


def exact_epsilon(mu, delta):
    if delta_of_mu(mu, 0) <= delta or delta_of_mu(mu, 60) >= delta:
        return 0.0 if delta_of_mu(mu, 0) <= delta else math.inf
    return brentq(lambda epsilon: delta_of_mu(mu, epsilon) - delta, 0, 60)


def concentrated_epsilon(mu, delta):
    """Return epsilon of mu-Gaussian privacy by the zCDP conversion (Bun and Steinke, Proposition 1.3)."""
    return mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))


@dataclass(frozen=True)
class CentralLimit:
    """Accountant by the central limit theorem for sampled Gaussians (Bu, Dong, Long, Su, Corollary 5.4)."""

    converted: Callable[[float, float], float]
    name: str = "rdp"

    def epsilon(self, event, count, delta):
        mu = event.sampling_rate * math.sqrt(count * math.expm1(event.noise_multiplier**-2))
        return self.converted(mu, delta)


GROUPS = groups_from_shares(600, (1.0, 3.0, 6.0), (0.5, 0.3, 0.2))


@pytest.mark.parametrize("converted", [exact_epsilon, concentrated_epsilon])
def test_in_the_central_limit_rates_are_proportional_to_mu(converted):
    found = rates(CentralLimit(converted), GROUPS, 0.1)
    mus = [brentq(lambda mu, e=group.epsilon: converted(mu, DELTA) - e, 1e-2, 20) for group in GROUPS]
    scale = 0.1 / mean_over_clients(mus, GROUPS)
    assert found == pytest.approx([scale * mu for mu in mus], rel=0.01)


def test_by_concentrated_privacy_they_are_problem_1s_while_epsilon_is_below_the_logarithm_of_delta():
    """By zCDP, with epsilon below log(1 / delta), rates are within 2 % of the paper's closed form."""
    closed = closed_form_sampling_rates((1.0, 3.0, 6.0), [300, 180, 120], sampling_rate=0.1, delta=DELTA)
    assert rates(CentralLimit(concentrated_epsilon), GROUPS, 0.1) == pytest.approx(closed, rel=0.02)


ORDERS = range(2, 64)


def noise_of(rate, epsilon):
    """Return the noise multiplier that a rate and an epsilon need, by dp-accounting alone."""

    def excess(log_sigma):
        accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
        event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(math.exp(log_sigma)))
        return accountant.compose(event, ROUNDS).get_epsilon(DELTA) - epsilon

    return math.exp(brentq(excess, -0.7, 2, xtol=1e-5))


def test_rates_nearby_make_the_sum_no_larger_for_its_noise():
    def step_over_noise(strict):
        return strict / noise_of(strict, 1.0) + (0.2 - strict) / noise_of(0.2 - strict, 5.0)

    strict, loose = rates(make_accountant("rdp", "whole"), groups_from_shares(400, (1.0, 5.0)), 0.1)
    assert strict + loose == pytest.approx(0.2, rel=1e-12)
    best = step_over_noise(strict)
    assert step_over_noise(1.1 * strict) < best > step_over_noise(0.9 * strict)
    assert step_over_noise(0.1) < 0.99 * best


def test_rates_are_at_least_the_floor_and_at_most_one():
    groups = groups_from_shares(300, (1.0, 3.0, 25.0))
    free = rates(CentralLimit(concentrated_epsilon), groups, 0.1)
    floored = rates(CentralLimit(concentrated_epsilon), groups, 0.1, min_sampling_rate=0.05)
    assert free[0] < 0.05 == floored[0]
    assert mean_over_clients(floored, groups) == pytest.approx(0.1, rel=1e-12)
    high = rates(CentralLimit(concentrated_epsilon), groups, 0.8)
    assert max(high) <= 1.0
    assert mean_over_clients(high, groups) == pytest.approx(0.8, rel=1e-12)


def test_a_budget_that_little_noise_meets_at_most_rates_is_no_obstacle():
    """Sampling rates are found although a budget of epsilon 25 needs no noise at low rates."""
    groups = groups_from_shares(300, (1.0, 3.0, 25.0))
    found = rates(make_accountant("rdp"), groups, 0.01, num_rounds=5, delta=1e-2)
    assert mean_over_clients(found, groups) == pytest.approx(0.01, rel=1e-12)
    assert list(found) == sorted(found)


def test_under_theorem1_all_rates_are_as_good_and_problem_1s_are_taken():
    groups = groups_from_shares(600, (1.0, 3.0, 6.0))
    closed = closed_form_sampling_rates((1.0, 3.0, 6.0), [200] * 3, sampling_rate=0.1, delta=DELTA)
    assert rates(make_accountant("theorem1"), groups, 0.1) == pytest.approx(closed, rel=1e-9)


def test_trivial_cases():
    groups = groups_from_shares(60, (1.0, 3.0))
    assert rates(make_accountant("pld"), groups, 1.0) == (1.0, 1.0)
    assert rates(make_accountant("pld"), groups, 0.2, min_sampling_rate=0.2) == (0.2, 0.2)
    assert rates(make_accountant("pld"), (Group(1.0, range(10)),), 0.3) == (0.3,)
    with pytest.raises(PrivacyError, match=r"min_sampling_rate=0\.3 in every group"):
        rates(make_accountant("pld"), groups, 0.2, min_sampling_rate=0.3)
