"""Tests of the auditor's accounting, against closed forms and against the project's separate accountants."""

import math
from dataclasses import replace
from typing import Any

import dp_accounting as dp
import pytest

from gdpfed.audit.accounting import (
    SampledSums,
    charges_of,
    composed_epsilon,
    epsilon_after,
    epsilon_against_server,
)
from gdpfed.audit.event_kinds import EVENT_KINDS, EventKind, check_charges, is_number
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


@pytest.mark.parametrize(("rate", "sigma", "rounds"), [(0.5, 600.0, 20), (0.05, 60.0, 1000)])
def test_small_figures_are_as_precise_as_large_ones(rate, sigma, rounds):
    """The auditor's epsilon is within 0.3 % of a fine-grid accountant's, also where epsilon is small."""
    audited, planned = both(rate=rate, sigma=sigma)
    expected = accountant_for("gaussian", "pld", "fine").epsilon(planned, rounds, DELTA)
    assert epsilon_after([(audited, rounds)], DELTA) == pytest.approx(expected, rel=3e-3)
    within = epsilon_after([(audited, rounds)], DELTA, at_most=expected * (1 + 5e-4))
    assert within <= expected * (1 + 5e-4)


def test_a_delta_below_the_tails_of_losses_has_a_figure_of_renyi_divergences():
    audited, planned = both(sigma=4.0)
    expected = accountant_for("gaussian", "rdp", "fine").epsilon(planned, 30, 1e-20)
    assert epsilon_after([(audited, 30)], 1e-20) == pytest.approx(expected, rel=0.02)
    strict, _ = both(adjacency="replace_one", sigma=4.0)
    assert epsilon_after([(strict, 30)], 1e-20) == math.inf


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
    refused = compose_runs(planned, DELTA, limit=expected / 3).epsilon
    assert expected < refused
    assert composed_epsilon(audited, DELTA, at_most=expected / 3) == pytest.approx(refused, rel=1e-6)
    sums = [Charge(event=each, count=4) for _, each in kinds]
    expected = compose_against_server(sums, DELTA)
    assert epsilon_against_server([(each, 4) for each, _ in kinds], DELTA) == pytest.approx(expected)


def test_two_kinds_of_sampling_are_added_up():
    kinds = [both(), both(sampling="fixed_size", sigma=6.0)]
    planned = [[Charge(event=each, count=10)] for _, each in kinds]
    together = composed_epsilon([[(each, 10)] for each, _ in kinds], DELTA, at_most=9.0)
    assert together == pytest.approx(compose_runs(planned, DELTA).epsilon, rel=0.01)


def test_replace_one_under_poisson_has_a_figure_among_several():
    strict, planned = both(adjacency="replace_one", sigma=4.0)
    ours = compose_runs([[Charge(event=planned, count=5)]] * 2, DELTA).epsilon
    assert composed_epsilon([[(strict, 5)], [(strict, 5)]], DELTA, at_most=9.0) == pytest.approx(
        ours, rel=1e-6
    )


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


SAVED: dict[str, dict[str, Any]] = {
    "sampled_gaussian": {
        **{"sampling": "poisson", "sampling_rate": 0.2, "group_size": 9, "num_sums": 1},
        **{"noise_stddev": 4.0, "clipping_norm": 1.0, "adjacency": "zero_out", "noise": "gaussian"},
    },
    "gaussian": {"noise_stddev": 4.0, "clipping_norm": 1.0, "adjacency": "zero_out", "noise": "gaussian"},
    "allocated_gaussian": {"noise_stddev": 4.0, "clipping_norm": 1.0, "block_rounds": 4},
    "dp_sgd_steps": {"batch_rate": 0.2, "noise_multiplier": 4.0, "num_steps": 6, "parties": 2},
    "local_windows": {
        **{"batch_rate": 0.2, "noise_multiplier": 4.0, "num_steps": 6, "window_steps": 3},
        "bound": "window",
    },
}
WRONG = [
    *(("sampled_gaussian", {key: 0}) for key in ("parties", "block_rounds", "num_steps", "window_steps")),
    *(("sampled_gaussian", {key: 0}) for key in ("num_sums", "group_size", "sampling_rate")),
    *(("sampled_gaussian", {"clipping_norm": value}) for value in (0.0, -1.0, None, math.nan, math.inf)),
    *(("sampled_gaussian", {key: "other"}) for key in ("sampling", "adjacency", "noise", "num_sums")),
    *(("sampled_gaussian", each) for each in ({"sampling_rate": 1.5}, {"noise_stddev": -1.0})),
    *(("gaussian", {key: 1}) for key in ("num_sums", "parties", "block_rounds")),
    *(("allocated_gaussian", {"block_rounds": value}) for value in (0, -3, 2.5, True)),
    *(("dp_sgd_steps", {"window_steps": 10}), ("dp_sgd_steps", {"bound": "convex", "window_steps": 6})),
    *(("dp_sgd_steps", {key: value}) for key in ("num_steps", "parties") for value in (0, -1, 0.5)),
    *(("local_windows", each) for each in ({"window_steps": 4}, {"window_steps": 12}, {"bound": ""})),
]


@pytest.mark.parametrize(("kind", "changed"), WRONG)
def test_an_event_that_no_program_writes_is_refused(kind, changed):
    """The auditor refuses an event with wrong or missing entries, since such an event may cost too little."""
    event = {"kind": kind, **SAVED[kind]}
    assert epsilon_after(charges_of([{"event": event, "count": 2}]), DELTA) > 0
    with pytest.raises(ValueError, match="wrong entries|whole windows"):
        charges_of([{"event": event | changed, "count": 2}])
    lacking = {key: value for key, value in event.items() if key not in changed}
    if changed.keys() & SAVED[kind].keys() - {"num_sums", "parties"}:
        with pytest.raises(ValueError, match="missing"):
            charges_of([{"event": lacking, "count": 2}])


@pytest.mark.parametrize("count", [0, -100_000, 1.5, True, None])
def test_a_charge_counts_whole_releases(count):
    event = {"kind": "gaussian", **SAVED["gaussian"]}
    with pytest.raises(ValueError, match="which is not a whole number from 1"):
        charges_of([{"event": event, "count": 3}, {"event": event, "count": count}])


def test_a_package_adds_the_kinds_of_its_own_rule(monkeypatch):
    monkeypatch.setattr(EVENT_KINDS, "_items", {})
    EVENT_KINDS.register("of_a_package", EventKind({"scale": is_number}, {}))
    charge = {"event": {"kind": "of_a_package", "scale": 2.0}, "count": 1}
    check_charges([charge], {"of_a_package"})
    with pytest.raises(ValueError, match="wrong entries: parties, scale"):
        check_charges([{**charge, "event": {"kind": "of_a_package", "parties": 0}}])
    with pytest.raises(ValueError, match="of kind of_a_package, and may have gaussian"):
        check_charges([charge], {"gaussian"})
    with pytest.raises(ValueError, match="cannot compute the cost of events of kind of_a_package"):
        charges_of([charge])
