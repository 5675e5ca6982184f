"""The auditor's figures against closed forms and against the project's accountants, which share no code."""

import math
from dataclasses import replace

import dp_accounting as dp
import pytest

from gdpfed.audit.accounting import (
    SampledSums,
    charges_of,
    composed_epsilon,
    epsilon_after,
    epsilon_against_server,
)
from gdpfed.privacy.accountants.accountant import accountant_for, make_accountant
from gdpfed.privacy.accountants.composition import compose, compose_against_server, compose_runs
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import DPSGDSteps, Gaussian, SampledGaussian

DELTA = 1e-4


def both(sampling="poisson", rate=0.1, adjacency="zero_out", noise="gaussian", sigma=1.5):
    audited = SampledSums(sampling, rate, 100, adjacency, noise, sigma)
    planned = SampledGaussian(
        sampling=sampling,
        sampling_rate=rate,
        group_size=100,
        noise_stddev=sigma,
        clipping_norm=1.0,
        adjacency=adjacency,
        noise=noise,
    )
    return audited, planned


@pytest.mark.parametrize(
    ("settings", "accountant"),
    [
        ({}, "pld"),
        ({"rate": 0.01}, "pld"),
        ({"rate": 1.0, "sigma": 6.0}, "pld"),
        ({"adjacency": "replace_one", "sigma": 3.0}, "pld"),
        ({"noise": "discrete_gaussian"}, "pld"),
        ({"sampling": "fixed_size", "sigma": 4.0}, "rdp"),
        ({"sampling": "fixed_size", "sigma": 8.0, "rate": 1.0}, "rdp"),
        ({"sampling": "fixed_size", "sigma": 4.0, "noise": "discrete_gaussian"}, "rdp"),
    ],
)
@pytest.mark.parametrize("rounds", [1, 30])
def test_two_derivations_agree(settings, accountant, rounds):
    audited, planned = both(**settings)
    expected = accountant_for(planned_noise(settings), accountant, "fine").epsilon(planned, rounds, DELTA)
    assert epsilon_after([(audited, rounds)], DELTA) == pytest.approx(expected, rel=5e-3)


def planned_noise(settings):
    return settings.get("noise", "gaussian")


def test_everybody_in_every_round_is_a_plain_gaussian():
    audited, _ = both(rate=1.0, sigma=3.0)
    assert epsilon_after([(audited, 9)], DELTA) == dp.get_epsilon_gaussian(1.0, DELTA)
    assert epsilon_after([(audited, 0)], DELTA) == 0.0


def test_no_noise_promises_nothing():
    audited, _ = both(sigma=0.0)
    assert epsilon_after([(audited, 1)], DELTA) == math.inf
    assert composed_epsilon([[(audited, 1)], [(audited, 1)]], DELTA, at_most=1.0) == math.inf
    assert epsilon_against_server([(audited, 1)], DELTA) == math.inf
    assert epsilon_against_server([(audited, 0)], DELTA) == 0.0


def test_a_figure_just_above_a_budget_is_refined_until_it_fits_or_is_sure():
    audited, _ = both()
    coarse, fine = epsilon_after([(audited, 30)], DELTA), epsilon_after([(audited, 30)], DELTA, at_most=1.2)
    assert fine <= coarse
    between = (coarse + epsilon_after([(audited, 30)], DELTA, at_most=coarse * (1 - 1e-9))) / 2
    assert epsilon_after([(audited, 30)], DELTA, at_most=between) <= between


def test_several_runs_agree_with_what_a_client_computes():
    kinds = [both(), both(sigma=3.0, rate=0.3)]
    audited = [[(each, 20)] for each, _ in kinds]
    planned = [[Charge(event=each, count=20)] for _, each in kinds]
    expected = compose_runs(planned, DELTA).epsilon
    assert composed_epsilon(audited, DELTA, at_most=9.0) == pytest.approx(expected, rel=1e-6)
    sums = [Charge(event=each, count=4) for _, each in kinds]
    expected = compose_against_server(sums, DELTA)
    assert epsilon_against_server([(each, 4) for each, _ in kinds], DELTA) == pytest.approx(expected)


def test_two_kinds_of_sampling_are_added_up():
    poisson, _ = both()
    fixed, _ = both(sampling="fixed_size", sigma=6.0)
    halves = [
        epsilon_after([(fixed, 10)], DELTA / 2),
        composed_epsilon([[(poisson, 5)]] * 2, DELTA / 2, at_most=9.0),
    ]
    together = composed_epsilon([[(poisson, 10)], [(fixed, 10)]], DELTA, at_most=9.0)
    assert together == pytest.approx(sum(halves), rel=1e-9)


def test_replace_one_under_poisson_has_no_figure_among_several():
    strict, _ = both(adjacency="replace_one", sigma=4.0)
    assert composed_epsilon([[(strict, 5)]], DELTA, at_most=9.0) < math.inf
    assert composed_epsilon([[(strict, 5)], [(strict, 5)]], DELTA, at_most=9.0) == math.inf


@pytest.mark.parametrize(
    "charges",
    [
        [
            Charge(event=both()[1], count=10),
            Charge(event=both(sigma=3.0, rate=0.3)[1], count=20),
        ],
        [Charge(event=replace(both(sigma=2.0)[1], num_sums=2), count=10)],
        [Charge(event=Gaussian(noise_stddev=9.0, clipping_norm=2.0), count=5)],
        [
            Charge(
                event=DPSGDSteps(batch_rate=0.05, noise_multiplier=1.0, num_steps=n), count=4, unit="record"
            )
            for n in (5, 9)
        ],
        [Charge(event=both(sampling="fixed_size", sigma=s)[1], count=7) for s in (4.0, 9.0)],
    ],
)
def test_a_schedule_of_several_events_agrees(charges):
    saved = [charge.to_dict() for charge in charges]
    fixed = any(charge["event"].get("sampling") == "fixed_size" for charge in saved)
    accountant = make_accountant("rdp" if fixed else "pld")
    expected = compose(charges, DELTA, schedule="fixed", accountant=accountant).epsilon
    assert epsilon_after(charges_of(saved), DELTA) == pytest.approx(expected, rel=5e-3)


def test_an_event_without_a_figure_is_refused():
    with pytest.raises(ValueError, match="cannot compute the cost of events of kind gaussian_mixture"):
        charges_of([{"event": {"kind": "gaussian_mixture"}, "count": 1, "unit": "client"}])
