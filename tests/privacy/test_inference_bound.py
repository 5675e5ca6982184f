"""Tests of bounds on membership inference, against explicit attacks, closed forms and the package riskcal."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from conf.load import load
from gdpfed.methods import make_method
from gdpfed.privacy.accountants.composition import inference_bound
from gdpfed.privacy.accountants.inference_bound import (
    gaussian_inference_bound,
    profile_inference_bound,
    renyi_inference_bound,
)
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import Gaussian, SampledGaussian

# riskcal 1.5.1, get_beta_from_pld and get_advantage_from_pld, of the same composed distributions.
RISKCAL = [
    (0.08, 1.4, 30, 0.0268262, 0.5678048),
    (0.33, 1.25, 30, 0.2307297, 0.7709977),
    (0.02, 0.9, 50, 0.0203651, 0.5407592),
    (0.5, 3.0, 30, 0.0825051, 0.6759337),
]


def sampled(rate, sigma, **others):
    settings = {"sampling": "poisson", "group_size": 1000, "noise_stddev": sigma, "clipping_norm": 1.0}
    return SampledGaussian(sampling_rate=rate, **{**settings, **others})


def gaussian_delta(mu):
    return lambda eps: norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0, 4.0])
def test_gaussians_profiles_and_divergences_lead_to_the_closed_form(mu):
    exact = gaussian_inference_bound(mu)
    assert exact.tpr_at_1_percent_fpr == pytest.approx(norm.cdf(norm.ppf(0.01) + mu))
    assert exact.accuracy_at_even_odds == pytest.approx(norm.cdf(mu / 2))
    found = profile_inference_bound(gaussian_delta(mu))
    assert exact.tpr_at_1_percent_fpr <= found.tpr_at_1_percent_fpr * (1 + 1e-9)
    assert found.tpr_at_1_percent_fpr == pytest.approx(exact.tpr_at_1_percent_fpr, rel=1e-4)
    assert found.accuracy_at_even_odds == pytest.approx(exact.accuracy_at_even_odds)
    renyi = renyi_inference_bound(
        {order: order * mu**2 / 2 for order in (1.1, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 1e4)}
    )
    assert exact.tpr_at_1_percent_fpr <= renyi.tpr_at_1_percent_fpr <= 3 * exact.tpr_at_1_percent_fpr + 0.02
    assert (
        exact.accuracy_at_even_odds <= renyi.accuracy_at_even_odds <= 0.55 * (1 + exact.accuracy_at_even_odds)
    )


@pytest.mark.parametrize(("rate", "sigma"), [(0.3, 0.8), (0.05, 0.5), (0.9, 2.0)])
def test_no_test_of_one_sampled_sum_is_better_and_the_best_one_is_as_good(rate, sigma):
    x = np.linspace(-12, 12, 2_000_001)
    without = norm.pdf(x, scale=sigma)
    took_part = (1 - rate) * without + rate * norm.pdf(x, loc=1, scale=sigma)
    step = x[1] - x[0]
    # The likelihood ratio rises with x: the best test is a threshold, from either side.
    best = max(
        (first[np.cumsum(second) * step <= 0.01]).sum() * step
        for first, second in ((took_part[::-1], without[::-1]), (without, took_part))
    )
    found = inference_bound([Charge(event=sampled(rate, sigma), count=1)])
    assert found.proof == "pld"
    assert best <= found.tpr_at_1_percent_fpr <= best * 1.01 + 1e-4
    total_variation = np.abs(took_part - without).sum() * step / 2
    assert found.accuracy_at_even_odds == pytest.approx((1 + total_variation) / 2, abs=1e-4)


@pytest.mark.parametrize(("rate", "sigma", "rounds", "tpr", "accuracy"), RISKCAL)
def test_riskcal_says_the_same(rate, sigma, rounds, tpr, accuracy):
    found = inference_bound([Charge(event=sampled(rate, sigma), count=rounds)])
    assert found.tpr_at_1_percent_fpr == pytest.approx(tpr, abs=2e-6)
    assert found.accuracy_at_even_odds == pytest.approx(accuracy, abs=1e-6)


def test_whoever_knows_the_cohorts_sees_one_gaussian():
    charge = Charge(event=sampled(0.1, 3.0), count=9)
    assert inference_bound([replace(charge, event=charge.event.for_members())]) == gaussian_inference_bound(
        1.0
    )
    assert inference_bound([Charge(event=sampled(1.0, 3.0), count=9)]) == gaussian_inference_bound(1.0)
    assert inference_bound(
        [Charge(event=Gaussian(noise_stddev=3.0, clipping_norm=1.0), count=9)]
    ) == gaussian_inference_bound(1.0)


def test_fixed_sizes_are_bounded_by_divergences_and_discrete_noise_costs_next_to_nothing():
    fixed = inference_bound([Charge(event=sampled(0.1, 3.0, sampling="fixed_size"), count=30)])
    poisson = inference_bound([Charge(event=sampled(0.1, 3.0), count=30)])
    assert fixed.proof == "rdp"
    assert poisson.tpr_at_1_percent_fpr < fixed.tpr_at_1_percent_fpr < 1
    discrete = inference_bound([Charge(event=sampled(0.1, 3.0, noise="discrete_gaussian"), count=30)])
    assert poisson.tpr_at_1_percent_fpr < discrete.tpr_at_1_percent_fpr < poisson.tpr_at_1_percent_fpr * 1.001


def test_rounds_that_differ_add_up():
    charges = [Charge(event=sampled(0.1, sigma), count=10) for sigma in (2.0, 3.0)]
    found = inference_bound(charges)
    least, most = (inference_bound([Charge(event=each.event, count=20)]) for each in charges[::-1])
    assert least.tpr_at_1_percent_fpr < found.tpr_at_1_percent_fpr < most.tpr_at_1_percent_fpr


def test_nothing_told_is_a_coin_and_no_noise_no_bound():
    nothing, open_ = inference_bound([]), make_method(load(["method=fedavg"])).plan.inference_bound(0)
    assert (nothing.tpr_at_1_percent_fpr, nothing.accuracy_at_even_odds) == (0.01, 0.5)
    assert (open_.tpr_at_1_percent_fpr, open_.accuracy_at_even_odds) == (1.0, 1.0)


def test_a_plan_has_one_for_every_group_and_epsilon_bounds_it():
    plan = make_method(load(["method=gdpfed", "run.num_rounds=5", "privacy.against=outsiders"])).plan
    for index, group in enumerate(plan.groups):
        found, members = plan.inference_bound(index), plan.inference_bound_of_members(index, 3)
        assert found.tpr_at_1_percent_fpr <= math.exp(group.epsilon) * 0.01 + plan.delta
        assert found.accuracy_at_even_odds <= (1 + math.tanh(group.epsilon / 2) + 2 * plan.delta) / 2
        exact = gaussian_inference_bound(math.sqrt(3) / group.noise_multiplier)
        assert members.tpr_at_1_percent_fpr == pytest.approx(exact.tpr_at_1_percent_fpr)
        assert plan.inference_bound(index, 1).tpr_at_1_percent_fpr < found.tpr_at_1_percent_fpr
    assert plan.inference_bound_of_members(0, 0).tpr_at_1_percent_fpr == 0.01
