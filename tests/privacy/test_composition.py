"""Tests of composed charges: epsilon is at most the sum, and costs of clients and records stay separate."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from gdpfed.errors import PrivacyError
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.accountants.composition import compose, compose_against_server, compose_runs
from gdpfed.privacy.accountants.discrete import GAUSSIAN_SHARE
from gdpfed.privacy.accountants.gaussian import epsilon_against_server, zcdp_epsilon
from gdpfed.privacy.charges import Charge, charge_from_dict
from gdpfed.privacy.events import DPSGDSteps, Gaussian, GaussianMixture, SampledGaussian

DELTA = 1e-4
PLD, RDP = make_accountant("pld"), make_accountant("rdp")


def mechanism(sigma=1.5, rate=0.1, *, sampling="poisson", adjacency="zero_out", **more):
    return SampledGaussian(
        sampling=sampling,
        sampling_rate=rate,
        group_size=100,
        noise_stddev=2 * sigma,
        clipping_norm=2.0,
        adjacency=adjacency,
        **more,
    )


def charge(event, count, unit="client"):
    return Charge(event=event, count=count, unit=unit)


def fixed(*charges, accountant=None):
    return compose(charges, DELTA, schedule="fixed", accountant=accountant).epsilon


def adaptive(*charges):
    return compose(charges, DELTA, schedule="adaptive").epsilon


def runs(*charges):
    return compose_runs([[each] for each in charges], DELTA).epsilon


def test_nothing_costs_nothing_and_no_noise_everything():
    assert runs() == fixed() == adaptive() == 0.0
    assert runs(charge(mechanism(sigma=0), 1)) == math.inf
    assert fixed(charge(mechanism(), 5), charge(mechanism(sigma=0), 1)) == math.inf
    assert compose([], DELTA, schedule="fixed").proof == "nothing"


def test_one_run_has_the_least_figure_that_covers_it():
    pld = PLD.epsilon(mechanism(), 50, DELTA)
    assert runs(charge(mechanism(), 50)) == pld < RDP.epsilon(mechanism(), 50, DELTA)
    whole = mechanism(4.0, sampling="fixed_size")
    assert runs(charge(whole, 50)) == RDP.epsilon(whole, 50, DELTA)
    assert compose([charge(mechanism(), 50)], DELTA, schedule="fixed").proof == "pld"
    assert compose([charge(whole, 50)], DELTA, schedule="fixed").proof == "rdp"


def test_a_schedule_in_two_parts_costs_what_it_costs_in_one():
    parts = [charge(mechanism(), 20), charge(mechanism(), 30)]
    for accountant in (PLD, RDP):
        assert fixed(*parts, accountant=accountant) == accountant.epsilon(mechanism(), 50, DELTA)
    in_one = RDP.epsilon(mechanism(), 50, DELTA)
    assert 1.01 * in_one < runs(*parts) < 1.1 * in_one
    assert compose(parts, DELTA, schedule="adaptive").proof == "renyi filter"


@pytest.mark.parametrize(
    "second",
    [
        charge(mechanism(3.0, 0.3), 10),
        charge(mechanism(6.0, sampling="fixed_size"), 10),
        charge(mechanism(noise="discrete_gaussian"), 10),
        charge(mechanism(3.0, 1.0), 3),
        charge(Gaussian(noise_stddev=9.0, clipping_norm=1.0), 5),
    ],
)
def test_two_runs_cost_more_than_each_and_less_than_both_added_up(second):
    first = charge(mechanism(), 50)
    alone = [runs(each) for each in (first, second)]
    together = runs(first, second)
    # The Renyi sum alone is up to a quarter above the loss distribution of one training.
    assert max(alone) < together < 1.25 * sum(alone)
    assert runs(second, first) == pytest.approx(together, rel=1e-12)
    assert runs(first, second, second) > together


def test_a_schedule_that_is_fixed_beforehand_costs_less_than_one_that_reacts():
    charges = [charge(mechanism(1.2, 0.1), 20), charge(mechanism(2.4, 0.2), 30)]
    pld = fixed(*charges, accountant=PLD)
    assert max(fixed(each) for each in charges) < pld < fixed(*charges, accountant=RDP)
    assert fixed(*charges, accountant=RDP) < adaptive(*charges)


def test_different_rounds_compose_to_the_loss_distribution_that_is_integrated_numerically():
    """The composed epsilon of two different rounds agrees with delta by numerical integration."""
    events = [mechanism(0.8, 0.2), mechanism(1.7, 0.5)]
    epsilon = compose([charge(event, 1) for event in events], DELTA, schedule="fixed", accountant=PLD).epsilon
    grids = [
        np.linspace(-9 * event.noise_multiplier, 1 + 9 * event.noise_multiplier, 1501) for event in events
    ]

    def delta(upper):
        losses, masses = [], []
        for event, grid in zip(events, grids, strict=True):
            sigma, q = event.noise_multiplier, event.sampling_rate
            without = norm.pdf(grid, 0, sigma)
            with_client = (1 - q) * without + q * norm.pdf(grid, 1, sigma)
            one, other = (with_client, without) if upper else (without, with_client)
            losses.append(np.log(one) - np.log(other))
            masses.append(one * (grid[1] - grid[0]))
        total = losses[0][:, None] + losses[1][None, :]
        weight = masses[0][:, None] * masses[1][None, :]
        return float((weight * np.clip(1 - np.exp(epsilon - total), 0, None)).sum())

    exact = max(delta(True), delta(False))
    assert DELTA * 0.97 < exact <= DELTA * 1.001


def test_theorem_1_accounts_one_event_only():
    charges = [charge(mechanism(3.0, 0.01), 20), charge(mechanism(4.0, 0.01), 20)]
    with pytest.raises(PrivacyError, match="theorem1 accounts one event for all rounds, not 2"):
        fixed(*charges, accountant=make_accountant("theorem1"))


def test_poisson_under_replace_one_is_planned_by_losses_and_added_up_by_the_filter():
    strict = charge(mechanism(4.0, adjacency="replace_one"), 10)
    assert 0 < runs(strict) < runs(strict, strict) < math.inf
    with pytest.raises(PrivacyError, match="no bound for poisson sampling under replace_one"):
        fixed(strict, accountant=RDP)


def test_units_never_add_up():
    client, record = charge(mechanism(), 5), charge(mechanism(), 5, "record")
    for schedule in ("fixed", "adaptive"):
        with pytest.raises(PrivacyError, match="per client and per record cannot be added up"):
            compose([client, record], DELTA, schedule=schedule)
    with pytest.raises(PrivacyError, match="cannot be added up"):
        compose_against_server([client, record], DELTA)
    with pytest.raises(PrivacyError, match="dp_sgd_steps costs a record, not a client"):
        charge(DPSGDSteps(batch_rate=0.1, noise_multiplier=1.0, num_steps=3), 1)


@pytest.mark.parametrize(
    ("epsilon", "rate", "sigma", "steps"),
    [(2, 0.05, 1.0, 20), (4, 0.05, 1.0, 136), (2, 0.05, 1.5, 144), (4, 0.1, 2.0, 276)],
)
def test_dp_sgd_steps_meet_the_reference(epsilon, rate, sigma, steps):
    """The reference number of DP-SGD steps stays within epsilon, and one step more does not."""

    def spent(num_steps):
        event = DPSGDSteps(batch_rate=rate, noise_multiplier=sigma, num_steps=num_steps)
        return compose([charge(event, 1, "record")], 1e-5, schedule="fixed", accountant=PLD).epsilon

    assert spent(steps) <= epsilon < spent(steps + 1)
    halves = [
        charge(DPSGDSteps(batch_rate=rate, noise_multiplier=sigma, num_steps=each), 1, "record")
        for each in (steps // 2, steps - steps // 2)
    ]
    split = compose(halves, 1e-5, schedule="fixed", accountant=PLD).epsilon
    assert split == pytest.approx(spent(steps), rel=2e-3)


def test_releases_without_sampling_are_one_gaussian_and_zcdp_is_close_above():
    charges = [
        charge(Gaussian(noise_stddev=4.0, clipping_norm=2.0), 3),
        charge(Gaussian(noise_stddev=9.0, clipping_norm=3.0), 4),
    ]
    sigma = (3 / 2.0**2 + 4 / 3.0**2) ** -0.5
    exact = epsilon_against_server(sigma, 1, DELTA)
    assert fixed(*charges) == pytest.approx(exact, rel=1e-12)
    assert exact < zcdp_epsilon(charges, DELTA) < 1.2 * exact
    with pytest.raises(PrivacyError, match="zCDP has no bound here for sampled_gaussian"):
        zcdp_epsilon([charge(mechanism(), 1)], DELTA)


def test_a_mixture_that_is_poisson_sampling_costs_what_poisson_sampling_does():
    """A release whose sensitivity is zero or full, at random, costs as much as Poisson sampling."""
    mixture = GaussianMixture(noise_stddev=3.0, sensitivities=(0.0, 2.0), weights=(0.9, 0.1))
    sampled = fixed(charge(mechanism(1.5, 0.1), 20), accountant=PLD)
    assert fixed(charge(mixture, 20), accountant=PLD) == pytest.approx(sampled, rel=2e-3)
    with pytest.raises(PrivacyError, match="the rdp accountant has no bound for gaussian_mixture"):
        fixed(charge(mixture, 20), accountant=RDP)
    assert fixed(charge(mixture, 20)) < adaptive(charge(mixture, 20)) < math.inf


def test_two_sums_over_one_cohort_cost_one_sum_of_less_noise():
    """Two sums over one sampled cohort cost as much as one sum with the noise divided by sqrt(2)."""
    twice = fixed(charge(mechanism(2.0, 0.1, num_sums=2), 20), accountant=PLD)
    assert twice == fixed(charge(mechanism(2.0 / math.sqrt(2), 0.1), 20), accountant=PLD)
    independent = fixed(charge(mechanism(2.0, 0.1), 40), accountant=PLD)
    assert twice > independent


@pytest.mark.parametrize(
    "event",
    [
        mechanism(noise="discrete_gaussian", num_sums=2),
        Gaussian(noise_stddev=1.0, clipping_norm=2.0),
        DPSGDSteps(batch_rate=0.1, noise_multiplier=1.0, num_steps=3),
        GaussianMixture(noise_stddev=1.0, sensitivities=(0.0, 1.0), weights=(0.5, 0.5)),
    ],
)
def test_charges_survive_a_file(event):
    saved = charge(event, 3, event.unit or "client")
    assert charge_from_dict(saved.to_dict()) == saved


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "a charge is 3; it must be a mapping"),
        (
            {"event": {"kind": "laplace"}, "count": 1, "unit": "client"},
            "the kind of the event .* is not known: use",
        ),
        ({"event": {"kind": "gaussian"}, "count": 1, "unit": "client"}, "lacks entries or has wrong ones"),
        (charge(mechanism(), 1).to_dict() | {"count": 0}, "a charge's count is 0"),
        (charge(mechanism(), 1).to_dict() | {"unit": "household"}, "unit=household is not known: use"),
    ],
)
def test_damaged_charges_are_told_in_one_line(data, words):
    with pytest.raises(PrivacyError, match=words):
        charge_from_dict(data)


def test_against_the_server_sums_of_two_runs_are_one_gaussian():
    sums = [charge(mechanism(1.5), 3), charge(mechanism(3.0), 4)]
    sigma = (3 / 1.5**2 + 4 / 3.0**2) ** -0.5
    assert compose_against_server(sums, DELTA) == pytest.approx(epsilon_against_server(sigma, 1, DELTA))
    assert compose_against_server([], DELTA) == 0.0
    assert compose_against_server([charge(mechanism(0), 1)], DELTA) == math.inf
    doubled = [charge(mechanism(3.0, adjacency="replace_one"), 4)]
    assert compose_against_server(doubled, DELTA) == pytest.approx(epsilon_against_server(1.5, 4, DELTA))


def test_discrete_noise_costs_a_hair_more():
    exact = compose_against_server([charge(mechanism(), 3)], DELTA)
    discrete = compose_against_server([charge(mechanism(noise="discrete_gaussian"), 3)], DELTA)
    assert exact < discrete < exact * (1 + 1e-3)


def test_discrete_noise_in_several_events_costs_a_hair_more_by_every_proof():
    """Several events with discrete noise cost more than with Gaussian noise, by less than 0.1 %."""

    def both(noise, share=1.0):
        return charge(mechanism(1.5 * share, noise=noise), 3), charge(mechanism(4.0 * share, noise=noise), 2)

    for accountant, least in ((PLD, PLD), (RDP, make_accountant("rdp", "whole"))):
        discrete = fixed(*both("discrete_gaussian"), accountant=accountant)
        exact = fixed(*both("gaussian"), accountant=least)
        assert exact < discrete < exact * (1 + 1e-3)
        if accountant is PLD:
            assert fixed(*both("gaussian", GAUSSIAN_SHARE), accountant=PLD) < discrete
